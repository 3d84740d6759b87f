"""Counts as DataFrames: the output topic as a table, and Spark's own sinks for changes."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name everybody gives it

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.port import open_broker
from thulawa.health.counts import Count
from thulawa.spark.connectors.kafka_sink import FORMAT, connection_options, register

__all__ = ["DataFrameSink", "read_counts"]

_KEY = "topic string, partition int, window bigint, status string"
_VALUE = "value bigint, offset bigint"


class DataFrameSink:
    """Passes the totals that changed to a function, as a DataFrame.

    Its columns are topic, partition (null where merged), window (a timestamp), status, value and
    offset (0 where merged). ``DataFrameSink(lambda df: df.write.mode("append").parquet("counts"))``
    appends: of the rows of one cell, that with the highest value holds.
    """

    def __init__(self, write: Callable[[DataFrame], Any]) -> None:
        self._write = write

    def put(self, counts: Sequence[Count]) -> None:
        """Pass totals to the function."""
        cells = [count.cell for count in counts]
        windows = pa.array([cell.window for cell in cells], pa.timestamp("ms"))
        table = pa.table(
            {
                "topic": pa.array([cell.topic for cell in cells], pa.string()),
                "partition": pa.array([cell.partition for cell in cells], pa.int32()),
                "window": windows.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")),
                "status": pa.array([cell.status for cell in cells], pa.string()),
                "value": pa.array([count.value for count in counts], pa.int64()),
                "offset": pa.array([count.offset for count in counts], pa.int64()),
            }
        )
        self._write(SparkSession.builder.getOrCreate().createDataFrame(table))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def read_counts(spark: SparkSession, log: str, output: str, *, merge: bool = False) -> DataFrame:
    """Return the counts in an output topic: topic, partition, window, status and value.

    With ``merge`` they are summed over partitions. Expired windows are not in the topic any more.
    Raise `ConfigurationError` if the topic does not exist.

    .. versionadded:: 0.1.0
    """
    open_broker(log).describe(output)  # raises if there is none
    rows = _records(spark, log, output)
    key = F.from_json(F.col("key").cast("string"), _KEY).alias("key")
    value = F.from_json(F.col("value").cast("string"), _VALUE).alias("value")
    # the last record of a cell is valid; a tombstone has no value
    last = F.max_by(F.struct(value), F.col("offset")).alias("last")
    newest = rows.groupBy(key).agg(last).where("last.value is not null")
    cells = newest.select(
        "key.topic",
        "key.partition",
        F.timestamp_millis("key.window").alias("window"),
        "key.status",
        F.col("last.value.value").alias("value"),
    )
    if not merge:
        return cells
    return cells.groupBy("topic", "window", "status").agg(F.sum("value").alias("value"))


def _records(spark: SparkSession, log: str, topic: str) -> DataFrame:
    if log.startswith("file:"):
        return spark.read.format("thulawa").option("subscribe", topic).load(log)
    register(spark)
    options = connection_options(Connection.of(log))
    return spark.read.format(FORMAT).options(**options).option("subscribe", topic).load()
