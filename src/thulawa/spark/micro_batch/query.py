"""Compile a program to a DataFrame: source, first stage, stateful stages, sink rows."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from thulawa.spark.connectors.log_packed import read_chunks
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.first_stage import run_first_stage
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import EMPTY, CountReport, ShippedProgram
from thulawa.spark.micro_batch.stateful import StageProcessor
from thulawa.spark.micro_batch.wire import PACKED
from thulawa.spark.session.worker_pools import dedicated_workers

_TASKS_PER_CORE = 4


def compile_program(
    spark: SparkSession,
    program: Program,
    reader: Any,
    workers: str,
    reports: Mapping[str, LaneReport] = EMPTY,
    counts: CountReport | None = None,
) -> DataFrame:
    """Return the records that a program sends to topics, as packed rows.

    Each stateful stage has a dedicated Python worker pool, which caches its stores; ``workers`` is
    the prefix of the pools' names. ``reports`` receive the lane statistics of async nodes, by node
    name, and ``counts`` the numbers of dropped records. While a program restores its stores, the
    rows are reports of the restore.
    """
    shipped = ShippedProgram(program, reports, counts)
    # Each Spark partition has a fixed cost, so there are no more than cores; a few times as many
    # where the first stage does all the work, so that applications can share the cores.
    stateless_only = not program.plan.stages
    cores = spark.sparkContext.defaultParallelism
    reader = reader.option("maxPartitions", cores * _TASKS_PER_CORE if stateless_only else cores)
    # A global table is complete before a join reads it, and the records that a micro-batch sends
    # through a repartition topic are processed by timestamp: no limit may split either.
    unbounded = program.plan.global_topics | {*program.internal_topics}
    reader = reader.option("unboundedTopics", ",".join(sorted(unbounded)))
    reader = reader.option("orderedGroups", json.dumps(program.ordered_groups))
    reader = reader.option("pacedGroups", json.dumps(program.paced_groups))
    first_stage = partial(run_first_stage, shipped)
    if reports or (stateless_only and program.options.may_drop):
        # a Python source has no accumulators: the first stage runs in an operator behind it
        packed = read_chunks(reader).mapInArrow(first_stage, PACKED)
    else:
        packed = read_chunks(reader, first_stage, PACKED)
    if program.plan.stages and len(program.slots) == 1:
        packed = packed.coalesce(1)  # a single task needs no shuffle
    for stage in range(1, program.plan.stages + 1):
        # Spark reads the time of a micro-batch from the offset log: a rerun sees the same time
        timed = packed.withColumn("time", expr("unix_millis(current_timestamp())"))
        with dedicated_workers(spark, f"{workers}, stage {stage}"):
            packed = timed.groupBy("slot").transformWithStateInPandas(
                StageProcessor(shipped, stage),
                outputStructType=PACKED,
                outputMode="append",
                # with timers Spark runs micro-batches continuously, with or without records
                timeMode="ProcessingTime" if program.has_timers else "None",
            )
    return packed
