"""How the topics of a program are read, whichever broker has them."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from thulawa.core.types import Offsets
from thulawa.spark.connectors.log_packed import Through, read_through
from thulawa.spark.connectors.stream_reader import Together
from thulawa.spark.micro_batch.wire import PACKED

__all__ = ["ReadSpec", "read_topics"]

_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What a program asks of the source that reads its topics.

    ``telling``: tasks whose accumulators reach the driver. ``alone``: nothing is behind the front,
    which does all the work. Topics that are ``whole`` are read to their end in every batch,
    whatever the limit. Of the partitions ``together`` the front is told which ones have more
    records than the batch reads. Those ``paced`` are not read far ahead of each other.
    """

    telling: bool = False
    alone: bool = False
    whole: Collection[str] = frozenset()
    together: Together = ()
    paced: Together = ()


def read_topics(
    spark: SparkSession,
    reader: Any,
    address: str | None,
    names: tuple[str, ...],
    max_records: int | None,
    front: Through,
    spec: ReadSpec,
    starts: Offsets | None,
) -> DataFrame:
    """Read topics by one of our formats, and run the front where they are read."""
    # a stage costs by the partition: no more of them than run at a time, or, where they take
    # long, a few times as many, so that applications can share the cores
    cores = spark.sparkContext.defaultParallelism
    most = cores * _TASKS_PER_CORE if spec.alone else cores
    reader = reader.option("subscribe", ",".join(names)).option("maxPartitions", most)
    if max_records is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_records)
    if starts:
        reader = reader.option("startingOffsets", json.dumps(starts))
    reader = reader.option("whole", ",".join(sorted(spec.whole)))
    reader = reader.option("together", json.dumps(spec.together))
    reader = reader.option("paced", json.dumps(spec.paced))
    if spec.telling:  # tasks of a source in Python have no accumulators
        return read_through(reader, address).mapInArrow(front, PACKED)
    return read_through(reader, address, front, PACKED)
