"""Step one on Spark: count messages where they are read, each partition by itself, no shuffle.

What leaves a task are a few rows for each window, which the driver adds to its totals. Messages are
read and counted in the Python worker: those of the embedded log straight from packed batches,
those of Kafka by its client. `count_windows` counts the rows of any DataFrame.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name everybody gives it

from thulawa.brokers.kafka.connection import Connection
from thulawa.core.durations import Duration
from thulawa.core.errors import ConfigurationError
from thulawa.core.types import TopicPartition
from thulawa.health.changelog import Changelog
from thulawa.health.columns import Rule, Since
from thulawa.health.embedded_counts import LogChangelog
from thulawa.health.kafka_counts import GroupMembership, KafkaChangelog
from thulawa.health.kafka_tasks import CountKafka
from thulawa.health.partition_leases import Leases, Owner
from thulawa.health.statuses import Status
from thulawa.health.tasks import CountLog, CountRows, Range

__all__ = [
    "Inputs",
    "count_windows",
    "counted_kafka",
    "counted_log",
    "counted_rows",
    "first_offsets",
    "inputs_at",
]

SCHEMA = "topic string, partition int, window bigint, status string, count bigint, offset bigint"
_COLUMNS = ("topic", "partition", "offset", "timestamp", "value")


def count_windows(
    status: Status, *, window: Duration = "1 second", expire: Duration = "1 day"
) -> Callable[[DataFrame], DataFrame]:
    """Give a transformation that counts messages per topic, partition, window and status.

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
    """Give where the rows of each partition begin."""
    firsts = df.groupBy("topic", "partition").agg(F.min("offset"))
    return {TopicPartition(topic, partition): first for topic, partition, first in firsts.collect()}


def counted_log(
    spark: SparkSession, address: str, ranges: Sequence[Range], rule: Rule
) -> DataFrame:
    """Count messages of the embedded log, as many partitions at once as Spark has cores."""
    shares = _shares(spark, ranges)
    return _run(spark, shares, CountLog(address, shares, rule))


def counted_kafka(
    spark: SparkSession, connection: Connection, ranges: Sequence[Range], rule: Rule
) -> DataFrame:
    """Count messages of Kafka, committed ones only, as many partitions at once as Spark has cores.

    Read in the worker: to pass messages through Spark's rows costs several times as much as to
    read and count them.
    """
    shares = _shares(spark, ranges)
    return _run(spark, shares, CountKafka(connection, shares, rule))


def _shares(spark: SparkSession, ranges: Sequence[Range]) -> list[list[Range]]:
    """Deal ranges out to tasks, the largest first."""
    largest_first = sorted(ranges, key=lambda one: one.since.offset - one.end)
    tasks = max(1, min(len(ranges), spark.sparkContext.defaultParallelism))
    return [largest_first[number::tasks] for number in range(tasks)]


def _run(spark: SparkSession, shares: list[list[Range]], task: CountLog | CountKafka) -> DataFrame:
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(task, SCHEMA)


class Inputs(Protocol):
    """Where the topics are: what `WindowCounts` asks of the embedded log, or of Kafka."""

    @property
    def changelog(self) -> Changelog:
        """The output topic."""

    def counted(self, spark: SparkSession, ranges: Sequence[Range], rule: Rule) -> DataFrame:
        """Count messages."""

    def shared(self, topics: Sequence[str]) -> Owner:
        """Join those who count these topics for the same application into the same output."""


class LogInputs:
    """The embedded log."""

    def __init__(self, address: str, output: str, application: str) -> None:
        self.changelog = LogChangelog(address, output, application)
        self._job = Path(application, output)

    def counted(self, spark: SparkSession, ranges: Sequence[Range], rule: Rule) -> DataFrame:
        """Count messages."""
        return counted_log(spark, self.changelog.log.address, ranges, rule)

    def shared(self, topics: Sequence[str]) -> Owner:
        """Share by locks on files beside the log."""
        folder = Path(self.changelog.log.address.removeprefix("file:"))
        # a digest: a path may not be as long as many names
        same = sha256("/".join(sorted(topics)).encode()).hexdigest()[:16]
        return Leases(folder / "leases" / self._job / same)


class KafkaInputs:
    """Kafka."""

    def __init__(self, connection: Connection, output: str, application: str) -> None:
        self.changelog = KafkaChangelog(connection, output, application)
        self._connection = connection
        self._job = f"{application}/{output}"

    def counted(self, spark: SparkSession, ranges: Sequence[Range], rule: Rule) -> DataFrame:
        """Count messages."""
        return counted_kafka(spark, self._connection, ranges, rule)

    def shared(self, topics: Sequence[str]) -> Owner:
        """Share by a consumer group; Kafka gives a member partitions of its own topics alone."""
        return GroupMembership(self._connection, f"{self._job}/members", topics)


def inputs_at(address: str, output: str, application: str) -> Inputs:
    """Give the topics at an address: ``file:./topics`` or ``kafka://host:9092``."""
    if address.startswith("file:"):
        return LogInputs(address, output, application)
    if address.startswith("kafka://"):
        return KafkaInputs(Connection.of(address), output, application)
    raise ConfigurationError(
        f"log={address!r} is not known; use file:PATH for an embedded log, or kafka://HOST:PORT"
    )
