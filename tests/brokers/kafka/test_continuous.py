"""Continuous applications on Kafka: exactly once over restarts and killed workers."""

import json
import os
import signal
import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.port import open_broker, read_to_end
from thulawa.core.types import ProducerRecord
from thulawa.spark.application import Streams
from thulawa.streams import StreamsBuilder
from thulawa.topology.topology import Topology


def continuous(topology: Topology, **options: Any) -> Any:
    return Streams(topology, execution="continuous", **options)


def counting(name: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(f"{name}-in").map_values(lambda value: {**value, "pid": os.getpid()})
    counts = stream.group_by(lambda _, value: value["user"]).count()
    stream.map_values(lambda value: value["pid"]).to(f"{name}-pids")
    counts.to_stream().to(f"{name}-out")
    return builder.build()


def visits(numbers: range) -> list[ProducerRecord]:
    return [
        ProducerRecord(str(number).encode(), json.dumps({"user": f"u{number % 7}"}).encode())
        for number in numbers
    ]


@pytest.mark.timeout(300)
def test_counts_are_exact_over_restarts_and_a_killed_worker(
    spark: SparkSession, connection: Connection, name: str
) -> None:
    broker = open_broker(connection)
    for topic in ("in", "out", "pids"):
        broker.create_topic(f"{name}-{topic}", 2)

    def application() -> Any:
        return continuous(counting(name), application_id=name, log=connection, spark=spark)

    with application() as app:
        broker.append(f"{name}-in", visits(range(500)))
        app.process_all_available("1 minute")
    with application() as app:
        broker.append(f"{name}-in", visits(range(500, 1_000)))
        _kill_a_worker(broker, name)  # Spark runs its task again
        broker.append(f"{name}-in", visits(range(1_000, 1_200)))
        app.process_all_available("1 minute")
    records = list(read_to_end(broker, f"{name}-out"))
    expected = Counter(f"u{number % 7}".encode() for number in range(1_200))
    by_key: dict[Any, list[int]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(int(record.value or b"0"))
    assert by_key == {key: list(range(1, count + 1)) for key, count in expected.items()}


def _kill_a_worker(broker: Any, name: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pids = [int(one.value or b"0") for one in read_to_end(broker, f"{name}-pids")]
        if len(pids) > 500:
            os.kill(pids[-1], signal.SIGKILL)
            return
        time.sleep(0.05)
    raise TimeoutError("no worker has written its process id")
