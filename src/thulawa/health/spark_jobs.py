"""Step one on Spark: count messages where they are read, each partition by itself, no shuffle.

What leaves a task are a few rows for each window, which the driver adds to its totals. Messages are
read and counted in the Python worker: those of the embedded log straight from packed batches,
those of Kafka by its client. `count_windows` counts the rows of any DataFrame.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name everybody gives it

from thulawa.brokers.kafka.broker import KafkaBroker
from thulawa.brokers.port import Broker
from thulawa.core.durations import Duration
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.health.counter import Rule, Since
from thulawa.health.partition_leases import GroupMembership, Leases, Owner
from thulawa.health.statuses import Status
from thulawa.health.tasks import CountRanges, CountRows, Range

__all__ = [
    "count_windows",
    "counted_ranges",
    "counted_rows",
    "first_offsets",
    "partition_owner",
]

SCHEMA = "topic string, partition int, window bigint, status string, count bigint, offset bigint"
_COLUMNS = ("topic", "partition", "offset", "timestamp", "value")


def count_windows(
    status: Status, *, window: Duration = "1 second", expire: Duration = "1 day"
) -> Callable[[DataFrame], DataFrame]:
    """Return a transformation that counts messages per topic, partition, window and status.

    ``df.transform(count_windows(is_valid))`` takes any DataFrame with the columns topic, partition,
    offset, timestamp and value, batch or streaming, and gives topic, partition, window (its start
    in milliseconds), status, count, and the offset behind the last message of the cell. It is the
    first of two steps: each task counts what it reads, so sum the counts over its rows. The rows
    of a partition must be in one task, in offset order, as Kafka's connector and the embedded log
    have them.

    .. versionadded:: 0.1.0
    """
    rule = Rule.of(status, window, expire)
    return lambda df: counted_rows(df, rule, {})


def counted_rows(df: DataFrame, rule: Rule, since: Mapping[TopicPartition, Since]) -> DataFrame:
    """Count the rows of a DataFrame from where counting stands."""
    if missing := [name for name in _COLUMNS if name not in df.columns]:
        raise ConfigurationError(f"to count, a column {missing[0]!r} is needed beside {df.columns}")
    narrow = df.select(
        "topic", "partition", "offset", F.unix_millis("timestamp").alias("timestamp"), "value"
    )
    return narrow.mapInArrow(CountRows(rule, dict(since)), SCHEMA)


def first_offsets(df: DataFrame) -> dict[TopicPartition, int]:
    """Return the first offset of the rows of each partition."""
    firsts = df.groupBy("topic", "partition").agg(F.min("offset"))
    return {TopicPartition(topic, partition): first for topic, partition, first in firsts.collect()}


def counted_ranges(
    spark: SparkSession, broker: Broker, ranges: Sequence[Range], rule: Rule
) -> DataFrame:
    """Count committed messages of topics, as many partitions at once as Spark has cores.

    They are read in the Python worker: to pass them through Spark's rows costs several times as
    much as to read and count them.
    """
    shares = _shares(spark, ranges)
    task = CountRanges(broker, shares, rule)
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, SCHEMA)


def _shares(spark: SparkSession, ranges: Sequence[Range]) -> list[list[Range]]:
    """Deal ranges out to tasks, the largest first."""
    largest_first = sorted(ranges, key=lambda one: one.since.offset - one.end)
    tasks = max(1, min(len(ranges), spark.sparkContext.defaultParallelism))
    return [largest_first[number::tasks] for number in range(tasks)]


def partition_owner(broker: Broker, job: str, topics: Sequence[str]) -> Owner:
    """Join the instances of a job that count the same topics, and share partitions with them.

    On Kafka by a consumer group, on the embedded log by locks on files beside it.
    """
    if isinstance(broker, KafkaBroker):
        return GroupMembership(broker.connection, f"{job}/members", topics)
    folder = Path(broker.address.removeprefix("file:"))
    # a digest: a path may not be as long as many names
    same = sha256("/".join(sorted(topics)).encode()).hexdigest()[:16]
    return Leases(folder / "leases" / job / same)
