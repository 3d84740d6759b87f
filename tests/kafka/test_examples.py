"""The examples that run on Kafka too."""

from pathlib import Path

import pytest

from tests.spark.test_examples import assert_by_priority, run_orders
from thulawa.kafka.connection import Connection


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("spark", "broker")  # its topics have the same names each time
def test_the_orders_of_the_bucket_pattern_are_shipped_by_priority_on_kafka(
    connection: Connection,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THULAWA_KAFKA", connection.bootstrap)
    run_orders(tmp_path / "priority.svg", "--kafka")
    told = capfd.readouterr()
    assert_by_priority(told.out)
    assert "fenced" not in told.err, "workers that take turns are nothing to tell of"
