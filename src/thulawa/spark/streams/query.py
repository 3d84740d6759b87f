"""From a program to a DataFrame: source → front → stages → packed rows for a sink."""

from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from thulawa.spark.log_packed import Through
from thulawa.spark.streams.front import front
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.shipping import Shipped
from thulawa.spark.streams.stateful import StageProcessor
from thulawa.spark.streams.wire import PACKED

__all__ = ["compile_program"]


def compile_program(program: Program, read: Callable[[Through], DataFrame]) -> DataFrame:
    """Give what the program sends to topics, packed; reports, while it rebuilds its stores.

    ``read`` gives what the front makes of the topics.
    """
    shipped = Shipped(program)
    packed = read(partial(front, shipped))
    if program.plan.stages and len(program.slots) == 1:
        packed = packed.coalesce(1)  # for a single task nothing needs to be shuffled
    for stage in range(1, program.plan.stages + 1):
        # the time of the batch is in the offset log: a batch that runs again has the same
        timed = packed.withColumn("time", expr("unix_millis(current_timestamp())"))
        packed = timed.groupBy("slot").transformWithStateInPandas(
            StageProcessor(shipped, stage),
            outputStructType=PACKED,
            outputMode="append",
            # with timers Spark runs batches all the time, whether or not there are records
            timeMode="ProcessingTime" if program.has_timers else "None",
        )
    return packed
