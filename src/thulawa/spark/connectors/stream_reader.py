"""Choose the records of each micro-batch, for the embedded log and for Kafka.

A micro-batch reads up to ``maxOffsetsPerTrigger`` records, divided evenly between partitions, or
with ``buckets`` by weight or strictly in order; what one does not use goes to the others. Unbounded
topics are not limited: a micro-batch reads them to their end. Partitions that a task merges by
timestamp are not read far ahead of each other (`Pace`).

Topics and partitions may change between micro-batches and between starts. New ones begin with their
first record, and those that are no longer read are left out. A topic that was deleted and created
again raises `StateError`, because its offsets no longer say what was read.
"""

import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from thulawa.core.types import TopicPartition
from thulawa.errors import StateError
from thulawa.priority.quotas import evenly
from thulawa.spark.connectors.chunks import Behind
from thulawa.spark.connectors.log_source import (
    SCHEMA,
    LogBatchReader,
    LogReader,
    SourcePartition,
    Split,
    TopicEnds,
    count_of,
)
from thulawa.spark.connectors.offsets import (
    NOTES,
    Notes,
    PartitionOffsets,
    by_partition,
    by_topic,
    topic_partitions,
)
from thulawa.spark.connectors.pacing import Pace

PartitionGroups: TypeAlias = Sequence[Mapping[str, Sequence[int]]]
"""Groups of topic-partitions, each as partition numbers by topic."""

_TIMEOUT = 10.0  # seconds for a new leader to catch up
_POLL = 0.2


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader with a record limit per micro-batch.

    An end offset holds all that its micro-batch depends on (`Notes`). A rerun reads the same
    records in the same Spark partitions, by whose numbers exactly-once sinks identify them.
    """

    def __init__(
        self,
        reader: LogReader,
        max_records: int | None,
        *,
        unbounded_topics: Collection[str] = frozenset(),
        ordered_groups: PartitionGroups = (),
        paced_groups: PartitionGroups = (),
    ) -> None:
        self._ordered = dict.fromkeys(at for one in ordered_groups for at in topic_partitions(one))
        self._pace = Pace(map(topic_partitions, paced_groups))
        self._reader = reader
        self._max_records = max_records
        self._unbounded_topics = unbounded_topics
        self._target: TopicEnds | None = None
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the start offsets; without notes, by which the first batch recognizes them."""
        return by_topic(self._reader.starts())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the record limit of a micro-batch."""
        return ReadAllAvailable() if self._max_records is None else ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Store the end offsets at which the query stops."""
        self._target = self._reader.look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offsets of the next micro-batch."""
        known, ids = by_partition(start), Notes.of(start).ids
        seen = self._target
        if seen is None or self._differing(known, ids, seen) is not None:
            seen = self._seen(known, ids)
        begins = self._begins(known if NOTES in start else {}, seen.ends, known)
        ends = seen.ends
        if isinstance(limit, ReadMaxRows):
            position = known | begins
            limited = {
                at: end for at, end in ends.items() if at.topic not in self._unbounded_topics
            }
            limited = self._paced(position, limited, limit.max_rows)
            ends = ends | share(position, limited, limit.max_rows, self._reader.split())
        if NOTES in start and ends == known:
            return start  # no new records, so no micro-batch
        more: dict[str, list[str]] = {}
        for at in self._ordered:
            if ends.get(at, 0) < seen.ends.get(at, 0):
                more.setdefault(at.topic, []).append(str(at.partition))
        most = self._reader.most_partitions or 0
        notes = Notes(most, self._reader.broker, seen.ids, by_topic(begins), more)
        self._planned = notes.beside(by_topic(ends))
        return self._planned

    def _paced(
        self, position: PartitionOffsets, ends: PartitionOffsets, most: int
    ) -> PartitionOffsets:
        """Return the end offsets, lowered for partitions that are ahead of others."""
        waiting = _waiting(position, ends)
        if sum(waiting.values()) <= most or not (watched := self._pace.watched(waiting)):
            return ends
        heads = self._reader.times({at: (position[at], ends[at]) for at in watched})
        partitions = sum(map(bool, waiting.values()))
        bounds = self._pace.most(position, heads, max(1, most // partitions))
        return {at: min(end, position[at] + bounds.get(at, end)) for at, end in ends.items()}

    def _begins(
        self, read: PartitionOffsets, ends: PartitionOffsets, starts: PartitionOffsets
    ) -> PartitionOffsets:
        """Return the start of partitions that were never read: ``starts`` or the first record."""
        fresh = [at for at in ends if at not in read]
        if not starts.keys() >= set(fresh):
            starts = self._reader.firsts() | starts
        return {at: starts[at] for at in fresh}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end offsets of the topics, for the query's progress report."""
        return by_topic(self._reader.look().ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SourcePartition]:
        """Return the Spark partitions of a micro-batch."""
        known, ends, notes = by_partition(start), by_partition(end), Notes.of(end)
        if end != self._planned:  # planned before a restart
            if NOTES not in end:
                raise StateError(
                    "the checkpoint has a batch that is not committed and was planned by Spark's "
                    "Kafka connector: its tasks are not known; finish it with the version that "
                    "planned it, or begin with a new checkpoint"
                )
            self._seen(ends, notes.ids)
        position = known | by_partition(notes.begins)
        if ends.keys() - position.keys():
            position = self._begins(known, ends, {}) | position
        dealt = self._reader.partitions(position, ends, notes.partitions)
        for one in dealt:  # tasks keep their numbers when a topic is no longer read
            one.ranges = [span for span in one.ranges if self._reader.reads(span.topic)]
        if dealt:
            dealt[0].behind = _changes(Notes.of(start), notes)
        return dealt

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one Spark partition."""
        return self._reader.read(partition)

    def _seen(self, read: PartitionOffsets, ids: Mapping[str, str]) -> TopicEnds:
        """Return the ends of topics; raise `StateError` if a topic was created again.

        Its new records would be skipped. A broker that has just become the leader of a partition
        may report fewer records for a moment, so the check is repeated until a deadline.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            seen = self._reader.look()
            wrong = self._differing(read, ids, seen)
            if wrong is None:
                return seen
            if not _is_same(wrong.topic, ids, seen.ids) or time.monotonic() > deadline:
                raise StateError(
                    f"topic {wrong.topic!r} was deleted and created again since the checkpoint "
                    f"read partition {wrong.partition} up to offset {read[wrong]} (it ends at "
                    f"{seen.ends.get(wrong, 'none')} now): its new records cannot be distinguished "
                    "from the old ones; begin with a new checkpoint"
                )
            time.sleep(_POLL)

    def _differing(
        self, read: PartitionOffsets, ids: Mapping[str, str], seen: TopicEnds
    ) -> TopicPartition | None:
        """Return a partition that has fewer records than were read, or another topic id."""
        for at, end in read.items():
            unassigned = at not in seen.ends and self._reader.assigned is not None
            if unassigned or not self._reader.reads(at.topic):
                continue
            if seen.ends.get(at, -1) < end or not _is_same(at.topic, ids, seen.ids):
                return at
        return None


class SourceFormat(DataSource):
    """A format with a batch and a streaming reader of records, one per row."""

    FORMAT: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT

    def schema(self) -> str:
        """Return the columns that are read: those of Spark's Kafka source."""
        return SCHEMA

    @abstractmethod
    def log_reader(self, *also: str) -> LogReader:
        """Create a reader from the options; ``also`` are options that it does not read."""

    def reader(self, schema: StructType) -> LogBatchReader:  # noqa: ARG002 it is fixed
        """Create the batch reader."""
        return LogBatchReader(self.log_reader())

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: ARG002
        """Create the streaming reader."""
        return LogStreamReader(self.log_reader(), count_of(self.options, "maxOffsetsPerTrigger"))


def _is_same(topic: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether the ids of a topic are equal, or not known."""
    return topic not in before or topic not in now or before[topic] == now[topic]


def _changes(before: Notes, now: Notes) -> list[Behind]:
    """Return each partition with unread records, and each that had some and is read now.

    The latter are needed because a waiting task may have no other rows in the micro-batch.
    """
    had, has = topic_partitions(before.more), topic_partitions(now.more)
    return [Behind(*at, behind=at in has) for at in sorted({*had, *has})]


def share(
    start: PartitionOffsets, ends: PartitionOffsets, most: int, split: Split = evenly
) -> PartitionOffsets:
    """Return the end offsets after at most ``most`` records, divided by ``split``."""
    taken = split(_waiting(start, ends), most)
    return {at: start.get(at, 0) + taken[at] for at in ends}


def _waiting(start: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
    return {at: end - start.get(at, 0) for at, end in ends.items()}
