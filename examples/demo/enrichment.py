"""The demonstration's job on Spark, three times: the same rows, the same service, the same sink.

`one_at_a_time` is a loop over the rows of the partition, as a stream processor has it;
`spark_udf` is Spark's own Python UDF; `thulawa` is `map_by_key`. The functions here run in
Spark's Python workers, so this module loads no terminal library.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

import thulawa
from examples.demo.service import AsyncLookups, Lookups, async_lookups

__all__ = ["SYSTEMS", "Place", "System", "start"]

System: TypeAlias = Literal["one_at_a_time", "spark_udf", "thulawa"]
SYSTEMS: tuple[System, ...] = ("one_at_a_time", "spark_udf", "thulawa")

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


def start(spark: Any, system: System, place: Place) -> Any:
    """Start one system's query."""
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
