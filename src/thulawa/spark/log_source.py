"""The embedded log as a Spark source: rows as Kafka's connector gives them, no broker.

One Spark partition per topic partition, rows in offset order; with ``maxPartitions`` several
topic partitions, one after the other, to a Spark partition, where there are more. A trigger
reads up to ``maxOffsetsPerTrigger`` records, shared evenly over the partitions, or with ``buckets``
by their weights or strictly in turn; what one does not use goes to the others. Topics that are
to be read ``whole`` do not count: a trigger reads them to their end.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from thulawa.core.admission import evenly
from thulawa.core.errors import ConfigurationError, StateError
from thulawa.core.garbage import settle
from thulawa.log import Columns, Log
from thulawa.spark.admitting import Admission, Assigned, Split, assigned, chosen
from thulawa.spark.offsets import DEALT, of_topics

__all__ = [
    "SCHEMA",
    "LogBatchReader",
    "LogReader",
    "LogStreamReader",
    "Offsets",
    "Range",
    "check_names",
    "count_of",
    "named",
    "share",
]

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_OPTIONS = (
    "path",
    "subscribe",
    "assign",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxPartitions",
    "buckets",
    "bucketOrder",
)

Offsets: TypeAlias = dict[str, dict[str, int]]


class Range(NamedTuple):
    """The records of one topic partition in [start, end)."""

    topic: str
    partition: int
    start: int
    end: int


class Ranges(InputPartition):
    """What one partition of Spark reads."""

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = ranges


@dataclass(frozen=True, slots=True)
class LogReader:
    """What batch and streaming readers have in common."""

    address: str
    topics: tuple[str, ...]
    starting: str
    most_partitions: int | None = None
    assigned: Assigned | None = None
    admission: Admission = field(default_factory=Admission)

    @classmethod
    def of(
        cls, options: Mapping[str, str], address: str | None = None, *, also: Sequence[str] = ()
    ) -> "LogReader":
        """Read the options of the source; Spark does not keep the case of their names.

        ``also`` are options that somebody else reads.
        """
        check_names(options, (*_OPTIONS, *also), "source")
        address = address or options.get("path")
        subscribed = options.get("subscribe")
        places = assigned(options)
        if not address or bool(subscribed) == bool(places):
            raise ConfigurationError(
                "the source needs a path and topics, or partitions of topics: "
                '.option("subscribe", "visits").load("file:./topics")'
            )
        topics = tuple(places or (name.strip() for name in (subscribed or "").split(",")))
        starting = options.get("startingOffsets", "earliest")
        return cls(
            address,
            topics,
            starting,
            count_of(options, "maxPartitions"),
            places,
            Admission.of(options),
        )

    def starts(self) -> Offsets:
        """Give the offsets to begin at."""
        return chosen(self._starts(), self.assigned)

    def _starts(self) -> Offsets:
        if self.starting == "latest":
            return self._ends()
        first = self._firsts()
        if self.starting == "earliest":
            return first
        wanted, ends = _chosen(self.starting), self._ends()
        if others := sorted(wanted.keys() - set(self.topics)):
            raise ConfigurationError(f"startingOffsets names {others}, which are not subscribed to")
        for topic, offsets in wanted.items():
            _check_within(topic, offsets, first[topic], ends[topic])
        return {topic: places | wanted.get(topic, {}) for topic, places in first.items()}

    def _firsts(self) -> Offsets:
        with Log(self.address) as log:
            return {topic: named(log.start_offsets(topic)) for topic in self.topics}

    def ends(self) -> Offsets:
        """Give the offsets of the next records to be written."""
        return chosen(self._ends(), self.assigned)

    def _ends(self) -> Offsets:
        with Log(self.address) as log:
            return {topic: named(log.end_offsets(topic)) for topic in self.topics}

    def split(self) -> Split:
        """Say how the limit of a trigger is shared."""
        if self.admission.buckets is None:
            return evenly
        return self.admission.split({topic: len(places) for topic, places in self._ends().items()})

    def partitions(self, start: Offsets, end: Offsets) -> list[Ranges]:
        """Deal out what is new to the partitions of Spark, one to each topic partition or more."""
        ranges = self._ranges(start, end)
        most = end.get(DEALT, {}).get("partitions", self.most_partitions)
        count = min(most or len(ranges), len(ranges))
        return [Ranges(ranges[place::count]) for place in range(count)]

    def _ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        return [
            Range(topic, int(partition), start.get(topic, {}).get(partition, 0), upto)
            for topic, partitions in sorted(of_topics(end).items())
            for partition, upto in sorted(partitions.items(), key=lambda item: int(item[0]))
            if upto > start.get(topic, {}).get(partition, 0)
        ]

    def read(self, wanted: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of a partition, each in offset order."""
        assert isinstance(wanted, Ranges)
        settle()
        for one, columns in self._chunks(wanted.ranges):
            if self.admission.buckets is not None:
                self.admission.buckets.check_headers(columns.headers)
            yield _arrow(columns, one)

    def _chunks(self, ranges: list[Range]) -> Iterator[tuple[Range, Columns]]:
        with Log(self.address) as log:
            for one in ranges:
                for columns in log.read_columns(one.topic, one.partition, one.start, one.end):
                    yield one, columns


def check_names(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Refuse options that would do nothing; those that begin with kafka are the client's."""
    given = {name.lower() for name in options if not name.lower().startswith("kafka.")}
    if unknown := given - {name.lower() for name in known}:
        raise ConfigurationError(
            f"the {what} has no options {sorted(unknown)}; it has {', '.join(known)}"
        )


def count_of(options: Mapping[str, str], name: str) -> int | None:
    """Give an option that is a number of things; None where it is not set."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and int(text)):
        raise ConfigurationError(f"{name}={text!r}: use a whole number from 1 on")
    return int(text)


def _chosen(text: str) -> dict[str, dict[str, Any]]:
    """Read offsets as Spark's Kafka source has them."""
    try:
        chosen = json.loads(text)
        if isinstance(chosen, dict) and all(isinstance(one, dict) for one in chosen.values()):
            return chosen
    except ValueError:
        pass
    raise ConfigurationError(
        f"startingOffsets={text!r:.60}: use 'earliest', 'latest' or the first offset of "
        """partitions, such as '{"visits": {"0": 17}}'"""
    )


def _check_within(
    topic: str, chosen: dict[str, Any], first: dict[str, int], end: dict[str, int]
) -> None:
    """Refuse offsets that the topic does not have."""
    for partition, offset in chosen.items():
        if partition not in end:
            raise ConfigurationError(f"startingOffsets: {topic} has no partition {partition!r}")
        if type(offset) is not int or not first[partition] <= offset <= end[partition]:
            raise ConfigurationError(
                f"startingOffsets: partition {partition} of {topic} begins at {first[partition]} "
                f"and ends at {end[partition]}, so it has no offset {offset!r}"
            )


class LogBatchReader(DataSourceReader):
    """Reads what is there."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self) -> list[Ranges]:
        """Give the ranges that exist now."""
        return self._reader.partitions(self._reader.starts(), self._reader.ends())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        return self._reader.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, so much at a time.

    Offsets say how their batch is dealt out too. A batch that is run again is so in the same
    partitions whatever ``maxPartitions`` has become: exactly-once sinks go by their numbers.
    """

    def __init__(
        self, reader: LogReader, most: int | None, whole: Collection[str] = frozenset()
    ) -> None:
        self._reader = reader
        self._most = most
        self._whole = whole
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:
        """Give the offsets to begin at."""
        return self._dealt(self._reader.starts())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Give the limit of a trigger."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where to stop."""
        self._target = self._reader.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:
        """Give the offsets up to which the next batch reads."""
        ends = self._reader.ends() if self._target is None else self._target
        _refuse_made_anew(start, ends)
        if isinstance(limit, ReadMaxRows):
            shared = {topic: places for topic, places in ends.items() if topic not in self._whole}
            ends = ends | share(start, shared, limit.max_rows, self._reader.split())
        return self._dealt(ends)

    def _dealt(self, offsets: Offsets) -> Offsets:
        return offsets | {DEALT: {"partitions": self._reader.most_partitions or 0}}

    def reportLatestOffset(self) -> Offsets:
        """Give the end of the log, for the query's progress."""
        return self._reader.ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Ranges]:
        """Give the ranges of a batch."""
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Keep what was read: retention is the topic's affair."""

    def stop(self) -> None:
        """Hold nothing that needs closing."""


def share(start: Offsets, ends: Offsets, most: int, split: Split = evenly) -> Offsets:
    """Move on by at most ``most`` records, shared as ``split`` says."""
    waiting = {
        (topic, partition): end - start.get(topic, {}).get(partition, 0)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }
    taken = split(waiting, most)
    return {
        topic: {
            partition: start.get(topic, {}).get(partition, 0) + taken[topic, partition]
            for partition in partitions
        }
        for topic, partitions in ends.items()
    }


def _refuse_made_anew(start: Offsets, ends: Offsets) -> None:
    """Refuse a partition that ends before what was read of it: new records would be skipped."""
    for topic, places in ends.items():
        for partition, end in places.items():
            read = start.get(topic, {}).get(partition, 0)
            if end < read:
                raise StateError(
                    f"partition {partition} of {topic!r} ends at {end}, and the checkpoint has "
                    f"read it up to {read}: the topic was made anew; begin with a new checkpoint"
                )


def named(offsets: Mapping[int, int]) -> dict[str, int]:
    """Write partitions as JSON does."""
    return {str(partition): offset for partition, offset in offsets.items()}


def _arrow(columns: Columns, of: Range) -> pa.RecordBatch:
    count = len(columns)
    headers = [
        [{"key": name, "value": value} for name, value in one] if one else None
        for one in columns.headers
    ]
    times = pa.array(columns.timestamps, pa.int64()).cast(pa.timestamp("ms"))
    return pa.record_batch(
        {
            "key": pa.array(columns.keys, pa.binary()),
            "value": pa.array(columns.values, pa.binary()),
            "topic": pa.array([of.topic] * count, pa.string()),
            "partition": pa.array([of.partition] * count, pa.int32()),
            "offset": pa.array(columns.offsets, pa.int64()),
            "timestamp": times.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")),
            "headers": pa.array(headers, _HEADERS),
        }
    )
