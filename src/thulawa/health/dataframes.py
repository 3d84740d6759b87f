"""Counts and Spark: count the rows of DataFrames and topics, read and write counts as DataFrames.

Messages are counted where they are read, each partition by itself, without a shuffle. A task
returns a few rows for each window, which the driver adds to its totals.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name everybody gives it

from thulawa.brokers.port import Broker, open_broker
from thulawa.core.durations import Duration
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.health.counter import Rule, Since
from thulawa.health.counts import Count
from thulawa.health.statuses import Status
from thulawa.health.tasks import CountRanges, CountRows, Range, ReadPartitions

_COUNTED = "topic string, partition int, window bigint, status string, count bigint, offset bigint"
_COLUMNS = ("topic", "partition", "offset", "timestamp", "value")
_KEY = "topic string, partition int, window bigint, status string"
_VALUE = "value bigint, offset bigint"
_TOTALS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("window", pa.timestamp("us", tz="UTC")),
        ("status", pa.string()),
        ("value", pa.int64()),
        ("offset", pa.int64()),
    ]
)


def count_windows(
    status: Status, *, window: Duration = "1 second", expire: Duration = "1 day"
) -> Callable[[DataFrame], DataFrame]:
    """Return a transformation that counts messages per topic, partition, window and status.

    ``df.transform(count_windows(is_valid))`` accepts any DataFrame with the columns topic,
    partition, offset, timestamp and value, batch or streaming, and returns topic, partition, window
    (its start in milliseconds), status, count, and the offset behind the last message of the cell.
    It is the first of two steps: each task counts what it reads, so sum the counts over its rows.
    The rows of a partition must be in one task, in offset order, as Kafka's connector and the
    embedded log have them.

    .. versionadded:: 0.1.0
    """
    rule = Rule.of(status, window, expire)
    return lambda df: count_rows(df, rule, {})


def count_rows(df: DataFrame, rule: Rule, since: Mapping[TopicPartition, Since]) -> DataFrame:
    """Count the rows of a DataFrame behind these offsets."""
    if missing := [name for name in _COLUMNS if name not in df.columns]:
        raise ConfigurationError(f"to count, a column {missing[0]!r} is needed beside {df.columns}")
    narrow = df.select(
        "topic", "partition", "offset", F.unix_millis("timestamp").alias("timestamp"), "value"
    )
    return narrow.mapInArrow(CountRows(rule, dict(since)), _COUNTED)


def count_ranges(
    spark: SparkSession, broker: Broker, ranges: Sequence[Range], rule: Rule
) -> DataFrame:
    """Count committed messages of topics, as many partitions at once as Spark has cores.

    They are read in the Python worker: to pass them through Spark's rows costs several times as
    much as to read and count them.
    """
    largest_first = sorted(ranges, key=lambda one: one.since.offset - one.end)
    tasks = max(1, min(len(ranges), spark.sparkContext.defaultParallelism))
    shares = [largest_first[number::tasks] for number in range(tasks)]
    counting = CountRanges(broker, shares, rule)
    return spark.range(0, tasks, 1, tasks).mapInArrow(counting, _COUNTED)


def first_offsets(df: DataFrame) -> dict[TopicPartition, int]:
    """Return the first offset of the rows of each partition."""
    firsts = df.groupBy("topic", "partition").agg(F.min("offset"))
    return {TopicPartition(topic, partition): first for topic, partition, first in firsts.collect()}


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
        rows = [
            {**cell._asdict(), "window": cell.window * 1000, "value": value, "offset": offset}
            for cell, value, offset in counts
        ]
        table = pa.Table.from_pylist(rows, _TOTALS)
        self._write(SparkSession.builder.getOrCreate().createDataFrame(table))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def read_counts(spark: SparkSession, log: str, output: str, *, merge: bool = False) -> DataFrame:
    """Return the counts in an output topic: topic, partition, window, status and value.

    With ``merge`` they are summed over partitions. Expired windows are not in the topic any more.
    Raise `ConfigurationError` if the topic does not exist.

    .. versionadded:: 0.1.0
    """
    broker = open_broker(log)
    count = broker.describe(output).partitions  # raises if there is no such topic
    read = ReadPartitions(broker, output)
    rows = spark.range(0, count, 1, count).mapInArrow(
        read, "key binary, value binary, offset bigint"
    )
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
