"""The examples that run on Kafka too."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.brokers.kafka.helpers import read
from tests.examples.test_examples import assert_by_priority, run_orders
from tests.examples.test_readme import ROOT, run
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, TopicSpec


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


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("spark", "broker")  # its topics have the same names each time
def test_the_example_of_the_page_copies_what_is_in_the_topic(
    connection: Connection, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topics.ensure("visits", TopicSpec(partitions=3))
    producer = Producer(connection.client())
    for address in ("10.0.0.1", "10.0.0.2"):
        producer.produce("visits", b"/", address, headers=[("agent", b"curl")], timestamp=1_000)
    producer.flush()
    run(ROOT / "docs" / "how-to" / "read-and-write-kafka.md", connection.bootstrap)
    found = {m.key(): (m.value(), m.headers()) for m in read(connection, "located")}
    agent = [("agent", b"curl")]
    assert found == {b"10.0.0.1": (b"LK", agent), b"10.0.0.2": (b"NO", agent)}
