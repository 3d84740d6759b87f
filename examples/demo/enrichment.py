"""The demonstration's job on Spark, four times: the same visits, service and kind of output.

`one_at_a_time` is a loop over the rows of the partition, as a stream processor has it;
`spark_udf` is Spark's own Python UDF; `thulawa` is `map_by_key` in micro-batches; `continuous` is a
topology that runs without micro-batches, at least once. The functions here run in Spark's Python
workers, so this module loads no terminal library.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

import thulawa
from examples.demo.service import AsyncLookups, Lookups, async_lookups
from thulawa.streams import Consumed, Produced, Serdes

__all__ = ["SYSTEMS", "Place", "Running", "System", "start"]

System: TypeAlias = Literal["one_at_a_time", "spark_udf", "thulawa", "continuous"]
SYSTEMS: tuple[System, ...] = ("one_at_a_time", "spark_udf", "thulawa", "continuous")

_VISIT = ("key", "offset AS visit", "unix_millis(timestamp) AS arrived")
_RESULT = ("key", "to_json(struct(visit, arrived, country)) AS value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job finds its visits, puts its results and asks its questions."""

    log: str
    visits: str
    results: str
    checkpoint: Path
    port: int
    latency_ms: int
    visits_per_batch: int


class Running(Protocol):
    """One system at work."""

    @property
    def ready(self) -> bool:
        """Whether it has started, with a first batch if it has batches."""

    def raise_failure(self) -> None:
        """Raise the error that has ended it, if it has ended."""

    def stop(self) -> None:
        """Stop it."""


@dataclass(frozen=True, slots=True)
class _Query:
    """A system that is a query of Structured Streaming."""

    query: Any

    @property
    def ready(self) -> bool:
        return self.query.lastProgress is not None

    def raise_failure(self) -> None:
        if (error := self.query.exception()) is not None:
            raise error

    def stop(self) -> None:
        self.query.stop()


@dataclass(frozen=True, slots=True)
class _Application:
    """A system that is a `Streams` application."""

    streams: thulawa.Streams
    ready: bool = True

    def raise_failure(self) -> None:
        self.streams.await_termination("0 ms")

    def stop(self) -> None:
        self.streams.stop("10 s")


def start(spark: Any, system: System, place: Place) -> Running:
    """Start one system."""
    if system == "continuous":
        return _Application(_continuous(spark, place).start())
    return _Query(_start_query(spark, system, place))


def _start_query(spark: Any, system: System, place: Place) -> Any:
    reader = spark.readStream.format("thulawa").option("subscribe", place.visits)
    if system != "thulawa":  # a batch of what cannot keep up would outlast the demonstration
        reader = reader.option("maxOffsetsPerTrigger", place.visits_per_batch)
    visits = reader.load(place.log).selectExpr(*_VISIT)
    located = _JOBS[system](spark, visits, place)
    results = located.selectExpr(*_RESULT)
    writer = thulawa.embedded.log_sink(results, place.log, topic=place.results).queryName(
        place.results
    )
    return writer.option("checkpointLocation", str(place.checkpoint)).start()


def _one_at_a_time(spark: Any, visits: Any, place: Place) -> Any:
    del spark
    located = partial(_loop, place.port, place.latency_ms)
    return visits.mapInArrow(located, "key binary, visit long, arrived long, country string")


def _spark_udf(spark: Any, visits: Any, place: Place) -> Any:
    country = spark.udf.register("country", partial(_country, place.port, place.latency_ms))
    return visits.withColumn("country", country("key"))


def _thulawa(spark: Any, visits: Any, place: Place) -> Any:
    del spark
    return visits.transform(
        thulawa.map_by_key(
            locate,
            key="key",
            returns="country string",
            keep=["key", "visit", "arrived"],
            in_flight=1_000,
            resource=partial(async_lookups, place.port, "thulawa", place.latency_ms),
        )
    )


def _continuous(spark: Any, place: Place) -> thulawa.Streams:
    builder = thulawa.StreamsBuilder()
    visits = builder.stream(
        place.visits, Consumed(key_serde=Serdes.string(), value_serde=Serdes.json())
    )
    located = visits.map_async(
        _with_country,
        in_flight=1_000,
        resource=partial(async_lookups, place.port, "continuous", place.latency_ms),
    )
    located.to(place.results, Produced(key_serde=Serdes.string(), value_serde=Serdes.json()))
    return thulawa.Streams(
        builder.build(),
        application_id=place.results,
        log=place.log,
        spark=spark,
        execution="continuous",
        processing_guarantee="at_least_once",
        parallelism=1,
    )


async def _with_country(
    ip: str, visit: dict[str, Any], lookups: AsyncLookups
) -> tuple[str, dict[str, Any]]:
    return ip, {**visit, "country": await lookups.country(ip)}


_JOBS: dict[System, Callable[[Any, Any, Place], Any]] = {
    "one_at_a_time": _one_at_a_time,
    "spark_udf": _spark_udf,
    "thulawa": _thulawa,
}


async def locate(visit: Any, lookups: AsyncLookups) -> str:
    """Look up where a visit came from."""
    return await lookups.country(visit.key.decode())


@cache
def _lookups(port: int, caller: System, latency_ms: int) -> Lookups:
    """Give this worker's connection."""
    return Lookups(port, caller, latency_ms)


def _loop(
    port: int, latency_ms: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    lookups = _lookups(port, "one_at_a_time", latency_ms)
    for batch in batches:
        ips = batch.column("key").to_pylist()
        countries = [lookups.country(ip.decode()) for ip in ips]
        yield batch.append_column("country", pa.array(countries, pa.string()))


def _country(port: int, latency_ms: int, key: bytes) -> str:
    # Spark hands a binary column over as bytearray or bytes, by its settings
    return _lookups(port, "spark_udf", latency_ms).country(bytes(key).decode())
