"""Read the topics of a program from either broker."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from thulawa.core.types import Offsets
from thulawa.spark.connectors.log_packed import ChunkFunction, read_chunks
from thulawa.spark.connectors.stream_reader import PartitionGroups
from thulawa.spark.micro_batch.wire import PACKED

__all__ = ["ReadSpec", "read_topics"]

_TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What a program requires of the source that reads its topics."""

    accumulators: bool = False  # the first stage reports to the driver through accumulators
    stateless_only: bool = False  # there is no later stage: the first one does all the work
    unbounded_topics: Collection[str] = frozenset()  # read to their end whatever the limit is
    ordered_groups: PartitionGroups = ()  # the first stage learns which of these have more records
    paced_groups: PartitionGroups = ()  # partitions of a group are not read far ahead of each other


def read_topics(
    spark: SparkSession,
    reader: Any,
    address: str | None,
    names: tuple[str, ...],
    max_records: int | None,
    first_stage: ChunkFunction,
    spec: ReadSpec,
    starts: Offsets | None,
) -> DataFrame:
    """Read topics with one of our formats, and run the first stage inside the source."""
    # Each Spark partition has a fixed cost, so there are no more than cores; a few times as many
    # where the first stage does all the work, so that applications can share the cores.
    cores = spark.sparkContext.defaultParallelism
    most = cores * _TASKS_PER_CORE if spec.stateless_only else cores
    reader = reader.option("subscribe", ",".join(names)).option("maxPartitions", most)
    if max_records is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_records)
    if starts:
        reader = reader.option("startingOffsets", json.dumps(starts))
    reader = reader.option("unboundedTopics", ",".join(sorted(spec.unbounded_topics)))
    reader = reader.option("orderedGroups", json.dumps(spec.ordered_groups))
    reader = reader.option("pacedGroups", json.dumps(spec.paced_groups))
    if spec.accumulators:  # a Python source has none: run it in an operator behind the source
        return read_chunks(reader, address).mapInArrow(first_stage, PACKED)
    return read_chunks(reader, address, first_stage, PACKED)
