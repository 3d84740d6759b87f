"""Passwords in addresses are neither shown nor accepted where they cannot be kept secret."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.embedded import Log
from thulawa.brokers.kafka.connection import Connection
from thulawa.core.registry import HttpSchemaRegistry
from thulawa.core.secrets import masked_address
from thulawa.errors import ConfigurationError
from thulawa.health.influx import Influx
from thulawa.spark.micro_batch.brokers import streams_broker

ADDRESSES = [
    "admin:hunter2@localhost:8086",
    "http:/admin:hunter2@localhost:8086",
    "tcp://admin:hunter2@localhost:8086",
    "one:9092,admin:hunter2@two:9092",
    "kafka://admin:x@hunter2@two:9092",
    "kafka://admin:x/hunter2@two:9092",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "use",
    [
        lambda address: Influx(address, database="d"),
        Connection,
        HttpSchemaRegistry,
        Log,
        streams_broker,
    ],
    ids=["influx", "kafka", "registry", "log", "streams"],
)
def test_an_address_with_a_password_is_rejected_without_showing_it(
    use: Callable[[str], Any], address: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        use(address)
    assert "hunter2" not in str(caught.value)
    assert "admin" not in str(caught.value)


def test_an_address_without_a_password_is_shown_unchanged(tmp_path: Path) -> None:
    for address in ("localhost:9092", "http://localhost:8086/x", f"file:{tmp_path}"):
        assert masked_address(address) == address
