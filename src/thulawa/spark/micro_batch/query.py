"""From a program to a DataFrame: source → front → stages → packed rows for a sink."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from thulawa.spark.connectors.log_packed import Through
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.dropped_records import CountReport
from thulawa.spark.micro_batch.first_stage import front
from thulawa.spark.micro_batch.inputs import ReadSpec
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import EMPTY, Shipped
from thulawa.spark.micro_batch.stateful import StageProcessor
from thulawa.spark.micro_batch.wire import PACKED
from thulawa.spark.session.worker_pools import own_workers

__all__ = ["compile_program"]


class Read(Protocol):
    """Returns what the front makes of the topics."""

    def __call__(self, front: Through, spec: ReadSpec) -> DataFrame: ...


def compile_program(
    program: Program,
    read: Read,
    workers: str,
    reports: Mapping[str, LaneReport] = EMPTY,
    counts: CountReport | None = None,
) -> DataFrame:
    """Give what the program sends to topics, packed; reports, while it rebuilds its stores.

    Each stage has workers of its own, who keep its stores; ``workers`` is what their names begin
    with. ``reports`` are told what the lanes of the async nodes of these names have come to,
    ``counts`` how many records nodes left out.
    """
    shipped = Shipped(program, reports, counts)
    alone = not program.plan.stages
    spec = ReadSpec(
        telling=bool(reports) or (alone and program.options.may_drop),
        alone=alone,
        # a table is there before what looks into it, and what the tasks of a batch have sent
        # through a topic is processed by timestamp: a limit must not leave half of either for later
        whole=program.plan.global_topics | {*program.inner_topics},
        together=program.together,
        paced=program.paced,
    )
    packed = read(partial(front, shipped), spec)
    if program.plan.stages and len(program.slots) == 1:
        packed = packed.coalesce(1)  # for a single task nothing needs to be shuffled
    for stage in range(1, program.plan.stages + 1):
        # the time of the batch is in the offset log: a batch that runs again has the same
        timed = packed.withColumn("time", expr("unix_millis(current_timestamp())"))
        with own_workers(packed.sparkSession, f"{workers}, stage {stage}"):
            packed = timed.groupBy("slot").transformWithStateInPandas(
                StageProcessor(shipped, stage),
                outputStructType=PACKED,
                outputMode="append",
                # with timers Spark runs batches all the time, whether or not there are records
                timeMode="ProcessingTime" if program.has_timers else "None",
            )
    return packed
