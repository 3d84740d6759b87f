"""Compile a program to a DataFrame: source, first stage, stateful stages, sink rows."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from thulawa.spark.connectors.log_packed import ChunkFunction
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.dropped_records import CountReport
from thulawa.spark.micro_batch.first_stage import run_first_stage
from thulawa.spark.micro_batch.inputs import ReadSpec
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import EMPTY, ShippedProgram
from thulawa.spark.micro_batch.stateful import StageProcessor
from thulawa.spark.micro_batch.wire import PACKED
from thulawa.spark.session.worker_pools import dedicated_workers

__all__ = ["compile_program"]


class Read(Protocol):
    """Reads topics and returns the output of the first stage."""

    def __call__(self, first_stage: ChunkFunction, spec: ReadSpec) -> DataFrame: ...


def compile_program(
    program: Program,
    read: Read,
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
    stateless_only = not program.plan.stages
    spec = ReadSpec(
        accumulators=bool(reports) or (stateless_only and program.options.may_drop),
        stateless_only=stateless_only,
        # A global table is complete before a join reads it, and the records that a micro-batch
        # sends through a repartition topic are processed by timestamp: no limit may split either.
        unbounded_topics=program.plan.global_topics | {*program.internal_topics},
        ordered_groups=program.ordered_groups,
        paced_groups=program.paced_groups,
    )
    packed = read(partial(run_first_stage, shipped), spec)
    if program.plan.stages and len(program.slots) == 1:
        packed = packed.coalesce(1)  # a single task needs no shuffle
    for stage in range(1, program.plan.stages + 1):
        # Spark reads the time of a micro-batch from the offset log: a rerun sees the same time
        timed = packed.withColumn("time", expr("unix_millis(current_timestamp())"))
        with dedicated_workers(packed.sparkSession, f"{workers}, stage {stage}"):
            packed = timed.groupBy("slot").transformWithStateInPandas(
                StageProcessor(shipped, stage),
                outputStructType=PACKED,
                outputMode="append",
                # with timers Spark runs micro-batches continuously, with or without records
                timeMode="ProcessingTime" if program.has_timers else "None",
            )
    return packed
