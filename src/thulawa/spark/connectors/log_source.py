"""The embedded log as a Spark source: what is read, and in which partitions of Spark.

One Spark partition per topic partition, rows in offset order; with ``maxPartitions`` several
topic partitions, one after the other, to a Spark partition, where there are more. Which records
a batch of a streaming query has is decided in `thulawa.spark.connectors.stream_reader`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from thulawa.brokers.embedded import Columns, Log
from thulawa.core.errors import ConfigurationError
from thulawa.core.gc_freeze import settle
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
    "Range",
    "Ranges",
    "Seen",
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

_EARLIEST, _LATEST = -2, -1  # in the place of an offset to begin at, as in Spark's Kafka source


class Range(NamedTuple):
    """The records of one topic partition in [start, end)."""

    topic: str
    partition: int
    start: int
    end: int


class Ranges(InputPartition):
    """What one partition of Spark reads, and what it tells of partitions that tasks wait for."""

    def __init__(self, ranges: list[Range], behind: Sequence[Behind] = ()) -> None:
        self.ranges = ranges
        self.behind = behind


class Seen(NamedTuple):
    """What the broker says of the topics: their ids, and the offsets of the next records."""

    ids: dict[str, str]
    ends: Offsets


@dataclass(frozen=True, slots=True)
class LogReader:
    """What batch and streaming readers have in common."""

    address: str
    topics: tuple[str, ...]
    starting: str
    most_partitions: int | None = None
    assigned: Assigned | None = None
    admission: Admission = field(default_factory=Admission)

    @property
    def broker(self) -> str:
        """Which kind of broker has the topics, as offsets note it."""
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
        """Read the options of the source; Spark does not keep the case of their names.

        ``also`` are options that somebody else reads. With a ``pattern`` no topics are named.
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
        """Return the offsets to begin at."""
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
        """Return the offsets of the first records that are still there."""
        return chosen(self._firsts(), self.assigned)

    def _firsts(self) -> Offsets:
        with Log(self.address) as log:
            return {topic: named(log.start_offsets(topic)) for topic in self.topics}

    def look(self) -> Seen:
        """Return the ids of the topics, and where they end."""
        seen = self._look()
        return Seen(seen.ids, chosen(seen.ends, self.assigned))

    def _look(self) -> Seen:
        with Log(self.address) as log:
            ids = {topic: str(log.topic(topic).id) for topic in self.topics}
            return Seen(ids, {topic: named(log.end_offsets(topic)) for topic in self.topics})

    def times(self, spans: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
        """Return the timestamps of the first records from an offset on, where so many wait."""
        found = {}
        with Log(self.address) as log:
            for (topic, number), (start, _) in spans.items():
                for record in log.read(topic, int(number), start, limit=1):
                    found[topic, number] = record.timestamp
        return found

    def reads(self, topic: str) -> bool:
        """Return whether records of a topic of this name are wanted."""
        return topic in self.topics

    def split(self) -> Split:
        """Say how the limit of a trigger is shared."""
        if self.admission.buckets is None:
            return evenly
        counts = {topic: len(places) for topic, places in self._look().ends.items()}
        return self.admission.split(counts)

    def partitions(self, start: Offsets, end: Offsets, most: int | None = None) -> list[Ranges]:
        """Deal out what is new to the partitions of Spark, one to each topic partition or more."""
        ranges = [
            Range(topic, int(partition), start[topic][partition], upto)
            for topic, partitions in sorted(end.items())
            for partition, upto in sorted(partitions.items(), key=lambda item: int(item[0]))
            if upto > start[topic][partition]
        ]
        count = min(most or len(ranges), len(ranges))
        return [Ranges(ranges[place::count]) for place in range(count)]

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

    def chunks(self, ranges: list[Range]) -> Iterator[Chunk]:
        """Read ranges as stream programs take them: many records at a time, packed or not."""
        with Log(self.address) as log:
            for one in ranges:
                for first, data in log.read_packed(one.topic, one.partition, one.start, one.end):
                    yield Chunk(one.topic, one.partition, first, data)


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


def _within(
    topic: str, chosen: dict[str, Any], first: dict[str, int], end: dict[str, int]
) -> dict[str, int]:
    """Return the offsets that are meant; refuse those that the topic does not have."""
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
    """Reads what is there."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self) -> list[Ranges]:
        """Give the ranges that exist now."""
        reader = self._reader
        return reader.partitions(reader.starts(), reader.look().ends, reader.most_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        return self._reader.read(partition)


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
