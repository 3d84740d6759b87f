"""The systems that are measured on Kafka: each reads one topic and writes another."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

import thulawa
from benchmarks.kafka_load import call_seconds
from benchmarks.peers import peer
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.transactions import Guarantee, SinkSpec
from thulawa.core.serdes import Serdes
from thulawa.spark.application import Streams
from thulawa.spark.connectors.kafka_sink import kafka_sink
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.streams import StreamsBuilder
from thulawa.streams.operator_options import Consumed, Materialized, Produced
from thulawa.topology.topology import Topology

__all__ = ["CALLING", "COUNTING", "Arm", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run has its topics and its files, and what it may use."""

    connection: Connection
    name: str
    folder: Path
    spark: Callable[[], SparkSession]
    mean: float  # seconds of a call
    in_flight: int
    max_records: int  # of a micro-batch

    @property
    def source(self) -> str:
        """Name the topic that is read."""
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        """Name the topic that is written."""
        return f"{self.name}-out"


Arm: TypeAlias = Callable[[Place], AbstractContextManager[Callable[[], None]]]
"""Runs a system for the length of a block; what it gives raises when the system has ended."""


@contextmanager
def thulawa_calls(place: Place) -> Iterator[Callable[[], None]]:
    """Run `map_by_key` between Kafka's source and its exactly-once sink."""
    mean = place.mean

    async def call(row: Any) -> tuple[bytes]:
        await asyncio.sleep(call_seconds(row.value, mean))
        return (row.value,)

    mapping = thulawa.map_by_key(
        call, key="key", returns="value binary", keep=["key"], in_flight=place.in_flight
    )
    rows = kafka_source(
        place.spark(), place.connection, place.source, max_records=place.max_records
    )
    sink = SinkSpec(connection=place.connection, application=place.name)
    writer = kafka_sink(rows.transform(mapping), sink, topic=place.output)
    query = writer.option("checkpointLocation", str(place.folder / "checkpoint")).start()

    def check() -> None:
        if (error := query.exception()) is not None:
            raise error

    try:
        yield check
    finally:
        query.stop()


@contextmanager
def thulawa_count(place: Place) -> Iterator[Callable[[], None]]:
    """Run a stream program that counts by key."""
    with Streams(
        counts(place),
        application_id=place.name,
        log=f"kafka://{place.connection.bootstrap}",
        checkpoint=str(place.folder / "checkpoint"),
        spark=place.spark(),
        max_records=place.max_records,
    ) as streams:
        yield lambda: (streams.await_termination("0 ms"), None)[1]


def continuous(build: Callable[[Place], Topology], guarantee: Guarantee) -> Arm:
    """Run a topology without micro-batches."""

    @contextmanager
    def arm(place: Place) -> Iterator[Callable[[], None]]:
        with Streams(
            build(place),
            application_id=place.name,
            log=f"kafka://{place.connection.bootstrap}",
            spark=place.spark(),
            processing_guarantee=guarantee,
            execution="continuous",
        ) as streams:
            yield lambda: (streams.await_termination("0 ms"), None)[1]

    return arm


def calls(place: Place) -> Topology:
    """Return the topology that makes a call for each record."""
    mean, raw = place.mean, Serdes.byte_array()

    async def call(value: bytes) -> bytes:
        await asyncio.sleep(call_seconds(value, mean))
        return value

    builder = StreamsBuilder()
    stream = builder.stream(place.source, Consumed(key_serde=raw, value_serde=raw))
    called = stream.map_values_async(call, in_flight=place.in_flight)
    called.to(place.output, Produced(key_serde=raw, value_serde=raw))
    return builder.build()


def counts(place: Place) -> Topology:
    """Return the topology that counts by key."""
    builder = StreamsBuilder()
    counted = builder.stream(place.source).group_by_key().count(Materialized.as_("counts"))
    counted.to_stream().to(place.output)
    return builder.build()


def parallel_consumer(place: Place) -> AbstractContextManager[Callable[[], None]]:
    """Run Confluent's Parallel Consumer with Vert.x, at least once."""
    return _java(
        place, "ParallelPeer", place.connection.bootstrap, place.name, place.source, place.output,
        str(place.in_flight), str(place.mean * 1000),
    )  # fmt: skip


def kafka_streams(
    guarantee: str, work: str | None = None
) -> Callable[[Place], AbstractContextManager[Callable[[], None]]]:
    """Run Kafka Streams, one thread as there is one partition."""

    def arm(place: Place) -> AbstractContextManager[Callable[[], None]]:
        return _java(
            place, "StreamsPeer", place.connection.bootstrap, place.name, place.source,
            place.output, str(place.folder / "state"), guarantee, work or str(place.mean * 1000),
        )  # fmt: skip

    return arm


@contextmanager
def _java(place: Place, program: str, *arguments: str) -> Iterator[Callable[[], None]]:
    log = place.folder / "peer.log"
    with peer(program, *arguments, log=log) as process:
        yield lambda: _alive(process, log)


def _alive(process: "subprocess.Popen[bytes]", log: Path) -> None:
    if process.poll() is not None:
        words = log.read_text(encoding="utf-8", errors="replace")[-1_500:]
        raise RuntimeError(f"the peer has ended:\n{words}")


CALLING: dict[str, Arm] = {
    "thulawa": thulawa_calls,
    "continuous": continuous(calls, "exactly_once"),
    "continuous_alo": continuous(calls, "at_least_once"),
    "parallel_consumer": parallel_consumer,
    "kafka_streams": kafka_streams("at_least_once"),
}
COUNTING: dict[str, Arm] = {
    "thulawa": thulawa_count,
    "continuous": continuous(counts, "exactly_once"),
    "continuous_alo": continuous(counts, "at_least_once"),
    "kafka_streams": kafka_streams("at_least_once", "count"),
    "kafka_streams_eos": kafka_streams("exactly_once_v2", "count"),
}
