"""The embedded log as a Spark source: what is read, and in which Spark partitions.

One Spark partition per topic-partition, rows in offset order; with ``maxPartitions`` a Spark
partition may read several topic-partitions in sequence. `thulawa.spark.connectors.stream_reader`
decides which records a micro-batch has.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from thulawa.brokers.embedded import Columns, Log
from thulawa.core.gc_freeze import freeze_gc
from thulawa.errors import ConfigurationError
from thulawa.priority.quotas import evenly
from thulawa.spark.connectors.bucket_options import (
    Admission,
    Assigned,
    Place,
    Split,
    assigned,
    chosen,
)
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.offsets import Offsets

__all__ = [
    "SCHEMA",
    "LogBatchReader",
    "LogReader",
    "OffsetRange",
    "SourcePartition",
    "TopicEnds",
    "check_names",
    "count_of",
    "named",
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

_EARLIEST, _LATEST = -2, -1  # as start offsets, as in Spark's Kafka source


class OffsetRange(NamedTuple):
    """The records of one topic-partition in [start, end)."""

    topic: str
    partition: int
    start: int
    end: int


class SourcePartition(InputPartition):
    """The ranges that one Spark partition reads, and which partitions have unread records."""

    def __init__(self, ranges: list[OffsetRange], behind: Sequence[Behind] = ()) -> None:
        self.ranges = ranges
        self.behind = behind


class TopicEnds(NamedTuple):
    """The ids of topics, and their end offsets."""

    ids: dict[str, str]
    ends: Offsets


@dataclass(frozen=True, slots=True)
class LogReader:
    """The part that batch and streaming readers share."""

    address: str
    topics: tuple[str, ...]
    starting: str
    most_partitions: int | None = None
    assigned: Assigned | None = None
    admission: Admission = field(default_factory=Admission)

    @property
    def broker(self) -> str:
        """The kind of broker, as offsets record it."""
        return ""

    @classmethod
    def of(
        cls,
        options: Mapping[str, str],
        address: str | None = None,
        *,
        also: Sequence[str] = (),
        pattern: str | None = None,
    ) -> "LogReader":
        """Create a reader from the options of the source; names are not case-sensitive.

        ``also`` are options that the caller reads. With a ``pattern`` no topics are named.
        """
        check_names(options, (*_OPTIONS, *also), "source")
        address = address or options.get("path")
        subscribed = options.get("subscribe")
        places = assigned(options)
        ways = [way for way in (subscribed, places, pattern) if way]
        if not address or len(ways) != 1:
            raise ConfigurationError(
                "the source needs a path and topics, or partitions of topics: "
                '.option("subscribe", "visits").load("file:./topics")'
            )
        named = (name.strip() for name in subscribed.split(",")) if subscribed else ()
        topics = tuple(places or named)
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
        """Return the start offsets."""
        return chosen(self._starts(), self.assigned)

    def _starts(self) -> Offsets:
        if self.starting == "latest":
            return self._look().ends
        first = self._firsts()
        if self.starting == "earliest":
            return first
        wanted, ends = _chosen(self.starting), self._look().ends
        if others := sorted(wanted.keys() - ends.keys()):
            raise ConfigurationError(f"startingOffsets names {others}, which are not subscribed to")
        return {
            topic: places | _within(topic, wanted.get(topic, {}), places, ends[topic])
            for topic, places in first.items()
        }

    def firsts(self) -> Offsets:
        """Return the offsets of the first records that exist."""
        return chosen(self._firsts(), self.assigned)

    def _firsts(self) -> Offsets:
        with Log(self.address) as log:
            return {topic: named(log.start_offsets(topic)) for topic in self.topics}

    def look(self) -> TopicEnds:
        """Return the ids and end offsets of the topics."""
        seen = self._look()
        return TopicEnds(seen.ids, chosen(seen.ends, self.assigned))

    def _look(self) -> TopicEnds:
        with Log(self.address) as log:
            ids = {topic: str(log.topic(topic).id) for topic in self.topics}
            return TopicEnds(ids, {topic: named(log.end_offsets(topic)) for topic in self.topics})

    def times(self, spans: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
        """Return the timestamp of the first record of each range of start and count."""
        found = {}
        with Log(self.address) as log:
            for (topic, number), (start, _) in spans.items():
                for record in log.read(topic, int(number), start, limit=1):
                    found[topic, number] = record.timestamp
        return found

    def reads(self, topic: str) -> bool:
        """Return whether a topic of this name is read."""
        return topic in self.topics

    def split(self) -> Split:
        """Return the function that divides the record limit."""
        if self.admission.buckets is None:
            return evenly
        counts = {topic: len(places) for topic, places in self._look().ends.items()}
        return self.admission.split(counts)

    def partitions(
        self, start: Offsets, end: Offsets, most: int | None = None
    ) -> list[SourcePartition]:
        """Return the Spark partitions for the records between two offsets, at most ``most``."""
        ranges = [
            OffsetRange(topic, int(partition), start[topic][partition], upto)
            for topic, partitions in sorted(end.items())
            for partition, upto in sorted(partitions.items(), key=lambda item: int(item[0]))
            if upto > start[topic][partition]
        ]
        count = min(most or len(ranges), len(ranges))
        return [SourcePartition(ranges[place::count]) for place in range(count)]

    def read(self, wanted: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a Spark partition, each range in offset order."""
        assert isinstance(wanted, SourcePartition)
        freeze_gc()
        for one, columns in self._chunks(wanted.ranges):
            if self.admission.buckets is not None:
                self.admission.buckets.check_headers(columns.headers)
            yield _arrow(columns, one)

    def _chunks(self, ranges: list[OffsetRange]) -> Iterator[tuple[OffsetRange, Columns]]:
        with Log(self.address) as log:
            for one in ranges:
                for columns in log.read_columns(one.topic, one.partition, one.start, one.end):
                    yield one, columns

    def chunks(self, ranges: list[OffsetRange]) -> Iterator[Chunk]:
        """Yield the records of ranges as chunks, for stream programs."""
        with Log(self.address) as log:
            for one in ranges:
                for first, data in log.read_packed(one.topic, one.partition, one.start, one.end):
                    yield Chunk(one.topic, one.partition, first, data)


def check_names(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Raise for unknown options; those that begin with ``kafka.`` are the client's."""
    given = {name.lower() for name in options if not name.lower().startswith("kafka.")}
    if unknown := given - {name.lower() for name in known}:
        raise ConfigurationError(
            f"the {what} has no options {sorted(unknown)}; it has {', '.join(known)}"
        )


def count_of(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a positive number; None if it is not set."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and int(text)):
        raise ConfigurationError(f"{name}={text!r}: use a whole number from 1 on")
    return int(text)


def _chosen(text: str) -> dict[str, dict[str, Any]]:
    """Return offsets from the JSON of Spark's Kafka source."""
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


def _within(
    topic: str, chosen: dict[str, Any], first: dict[str, int], end: dict[str, int]
) -> dict[str, int]:
    """Return the start offsets of a topic; raise for those that it does not have."""
    found = {}
    for partition, offset in chosen.items():
        if partition not in end:
            raise ConfigurationError(f"startingOffsets: {topic} has no partition {partition!r}")
        begin = {_EARLIEST: first[partition], _LATEST: end[partition]}.get(offset, offset)
        if type(begin) is not int or not first[partition] <= begin <= end[partition]:
            raise ConfigurationError(
                f"startingOffsets: partition {partition} of {topic} begins at {first[partition]} "
                f"and ends at {end[partition]}, so it has no offset {offset!r}"
            )
        found[partition] = begin
    return found


class LogBatchReader(DataSourceReader):
    """Batch reader of the records that exist."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self) -> list[SourcePartition]:
        """Return the Spark partitions for the records that exist now."""
        reader = self._reader
        return reader.partitions(reader.starts(), reader.look().ends, reader.most_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one Spark partition."""
        return self._reader.read(partition)


def named(offsets: Mapping[int, int]) -> dict[str, int]:
    """Return offsets with partition numbers as text, as in JSON."""
    return {str(partition): offset for partition, offset in offsets.items()}


def _arrow(columns: Columns, of: OffsetRange) -> pa.RecordBatch:
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
