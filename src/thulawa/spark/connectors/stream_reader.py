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
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from thulawa.errors import StateError
from thulawa.priority.quotas import evenly
from thulawa.spark.connectors.bucket_options import Place, Split
from thulawa.spark.connectors.chunks import Behind
from thulawa.spark.connectors.log_source import LogReader, SourcePartition, TopicEnds
from thulawa.spark.connectors.offsets import NOTES, Notes, Offsets, of_topics
from thulawa.spark.connectors.pacing import Pace

__all__ = ["LogStreamReader", "PartitionGroups", "share"]

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
        self._ordered_groups = ordered_groups
        self._pace = Pace([*map(list, map(_topic_partitions, paced_groups))])
        self._reader = reader
        self._max_records = max_records
        self._unbounded_topics = unbounded_topics
        self._target: TopicEnds | None = None
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> Offsets:
        """Return the start offsets; without notes, by which the first batch recognizes them."""
        return self._reader.starts()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the record limit of a micro-batch."""
        return ReadAllAvailable() if self._max_records is None else ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Store the end offsets at which the query stops."""
        self._target = self._reader.look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offsets of the next micro-batch."""
        known = of_topics(start)
        ids = Notes.of(start).ids
        seen = self._target
        if seen is None or next(self._differing(known, ids, seen), None) is not None:
            seen = self._seen(known, ids)
        begins = self._begins(known if NOTES in start else {}, seen.ends, known)
        position = _merged(seen.ends, known, begins)
        ends = seen.ends
        if isinstance(limit, ReadMaxRows):
            shared = {
                topic: places
                for topic, places in ends.items()
                if topic not in self._unbounded_topics
            }
            shared = self._paced(position, shared, limit.max_rows)
            ends = ends | share(position, shared, limit.max_rows, self._reader.split())
        if NOTES in start and ends == known:
            return start  # no new records, so no micro-batch
        more = self._more(ends, seen.ends)
        most = self._reader.most_partitions or 0
        notes = Notes(most, self._reader.broker, seen.ids, begins, more)
        self._planned = notes.beside(ends)
        return self._planned

    def _paced(self, position: Offsets, ends: Offsets, most: int) -> Offsets:
        """Return the end offsets, lowered for partitions that are ahead of others."""
        waiting = _waiting(position, ends)
        if sum(waiting.values()) <= most or not (watched := self._pace.watched(waiting)):
            return ends
        starts = {(topic, number): position[topic][number] for topic, number in waiting}
        heads = self._reader.times({one: (starts[one], waiting[one]) for one in watched})
        partitions = sum(map(bool, waiting.values()))
        bounds = self._pace.most(starts, heads, max(1, most // partitions))
        return {
            topic: {
                number: min(end, position[topic][number] + bounds.get((topic, number), end))
                for number, end in places.items()
            }
            for topic, places in ends.items()
        }

    def _more(self, ends: Offsets, there: Offsets) -> dict[str, list[str]]:
        """Return the partitions of ordered groups that have more records than the batch reads."""
        found: dict[str, list[str]] = {}
        for topic, number in dict.fromkeys(chain(*map(_topic_partitions, self._ordered_groups))):
            if ends.get(topic, {}).get(number, 0) < there.get(topic, {}).get(number, 0):
                found.setdefault(topic, []).append(number)
        return found

    def _begins(self, read: Offsets, ends: Offsets, starts: Offsets) -> Offsets:
        """Return the start of partitions that were never read: ``starts`` or the first record."""
        fresh = {
            topic: [number for number in places if number not in read.get(topic, {})]
            for topic, places in ends.items()
        }
        fresh = {topic: numbers for topic, numbers in fresh.items() if numbers}
        known = all(n in starts.get(topic, {}) for topic, numbers in fresh.items() for n in numbers)
        firsts = starts if known else _merged(self._reader.firsts(), starts)
        return {
            topic: {number: firsts[topic][number] for number in numbers}
            for topic, numbers in fresh.items()
        }

    def reportLatestOffset(self) -> Offsets:
        """Return the end offsets of the topics, for the query's progress report."""
        return self._reader.look().ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SourcePartition]:
        """Return the Spark partitions of a micro-batch."""
        known, ends, notes = of_topics(start), of_topics(end), Notes.of(end)
        if end != self._planned:  # planned before a restart
            _check_layout_known(end)
            self._seen(ends, notes.ids)
        begins = self._begins(known, ends, {}) if _missing(ends, known, notes.begins) else {}
        position = _merged(ends, begins, known, notes.begins)
        dealt = self._reader.partitions(position, ends, notes.partitions)
        for one in dealt:  # tasks keep their numbers when a topic is no longer read
            one.ranges = [span for span in one.ranges if self._reader.reads(span.topic)]
        if dealt:
            dealt[0].behind = _changes(Notes.of(start), notes)
        return dealt

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one Spark partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the retention of the topic deletes records."""

    def stop(self) -> None:
        """Do nothing: there is nothing to close."""

    def _seen(self, read: Offsets, ids: Mapping[str, str]) -> TopicEnds:
        """Return the ends of topics; raise `StateError` if a topic was created again.

        Its new records would be skipped. A broker that has just become the leader of a partition
        may report fewer records for a moment, so the check is repeated until a deadline.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            seen = self._reader.look()
            wrong = next(self._differing(read, ids, seen), None)
            if wrong is None:
                return seen
            topic, partition, upto = wrong
            if not _is_same(topic, ids, seen.ids) or time.monotonic() > deadline:
                end = seen.ends.get(topic, {}).get(partition, "none")
                raise StateError(
                    f"topic {topic!r} was deleted and created again since the checkpoint read "
                    f"partition {partition} up to offset {upto} (it ends at {end} now): its new "
                    "records cannot be told from the old ones; begin with a new checkpoint"
                )
            time.sleep(_POLL)

    def _differing(
        self, read: Offsets, ids: Mapping[str, str], seen: TopicEnds
    ) -> Iterator[tuple[str, str, int]]:
        for topic, places in read.items():
            now = seen.ends.get(topic, {})
            for partition, upto in places.items() if self._reader.reads(topic) else ():
                if partition not in now and self._reader.assigned is not None:
                    continue  # no longer assigned
                same = _is_same(topic, ids, seen.ids)
                if not same or partition not in now or now[partition] < upto:
                    yield topic, partition, upto


def _is_same(topic: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether the ids of a topic are equal, or not known."""
    return topic not in before or topic not in now or before[topic] == now[topic]


def _check_layout_known(end: Mapping[str, Any]) -> None:
    """Raise `StateError` for a batch of Spark's connector, whose task layout is not known."""
    if NOTES not in end:
        raise StateError(
            "the checkpoint has a batch that is not committed and was planned by Spark's Kafka "
            "connector: its tasks are not known; finish it with the version that planned it, or "
            "begin with a new checkpoint"
        )


def _topic_partitions(group: Mapping[str, Sequence[int]]) -> Iterator[Place]:
    return ((topic, str(number)) for topic, numbers in group.items() for number in numbers)


def _changes(before: Notes, now: Notes) -> list[Behind]:
    """Return each partition with unread records, and each that had some and is read now.

    The latter are needed because a waiting task may have no other rows in the micro-batch.
    """
    return [
        Behind(topic, int(number), now.has_more(topic, number))
        for topic in sorted({*before.more, *now.more})
        for number in sorted({*before.more.get(topic, ()), *now.more.get(topic, ())}, key=int)
    ]


def _missing(ends: Offsets, *known: Mapping[str, Mapping[str, int]]) -> bool:
    return any(
        not any(number in one.get(topic, {}) for one in known)
        for topic, places in ends.items()
        for number in places
    )


def _merged(of: Offsets, *offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return an offset for each partition: from the last mapping that has one, else ``of``."""
    return {
        topic: {
            number: next(
                (one[topic][number] for one in reversed(offsets) if number in one.get(topic, {})),
                at,
            )
            for number, at in places.items()
        }
        for topic, places in of.items()
    }


def share(start: Offsets, ends: Offsets, most: int, split: Split = evenly) -> Offsets:
    """Return the end offsets after at most ``most`` records, divided by ``split``."""
    taken = split(_waiting(start, ends), most)
    return {
        topic: {
            partition: start.get(topic, {}).get(partition, 0) + taken[topic, partition]
            for partition in partitions
        }
        for topic, partitions in ends.items()
    }


def _waiting(start: Offsets, ends: Offsets) -> dict[Place, int]:
    """Return the number of records between two offsets, by partition."""
    return {
        (topic, partition): end - start.get(topic, {}).get(partition, 0)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }
