"""The embedded log as a Spark source: what is read, and in which Spark partitions.

One Spark partition per topic-partition, rows in offset order; with ``maxPartitions`` a Spark
partition may read several topic-partitions in sequence. `thulawa.spark.connectors.stream_reader`
decides which records a micro-batch has.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from thulawa.brokers.embedded import Columns, Log
from thulawa.core.gc_freeze import freeze_gc
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.quotas import evenly, grouped, in_turn, weighted
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.offsets import PartitionOffsets, by_partition, topic_partitions

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_OPTIONS = ("path", "subscribe", "assign", "startingOffsets", "maxOffsetsPerTrigger",
            "maxPartitions", "buckets", "bucketOrder")  # fmt: skip
_BUCKET_ORDERS = ("weighted", "strict")
_EARLIEST, _LATEST = -2, -1  # as start offsets, as in Spark's Kafka source


Split: TypeAlias = Callable[[Mapping[TopicPartition, int], int], Mapping[TopicPartition, int]]
"""A function that divides a record limit between partitions with these numbers of records."""


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
    ends: PartitionOffsets


@dataclass(frozen=True, slots=True)
class LogReader:
    """The part that batch and streaming readers share."""

    address: str
    topics: tuple[str, ...]
    starting: str
    most_partitions: int | None = None
    assigned: Mapping[str, Sequence[int]] | None = None
    buckets: Buckets | None = None
    bucket_order: str | None = None

    broker: ClassVar[str] = ""
    """The kind of broker, as offsets record it."""

    @classmethod
    def of(
        cls,
        options: Mapping[str, str],
        address: str | None = None,
        *,
        also: Sequence[str] = (),
        **more: Any,
    ) -> Self:
        """Create a reader from the options of the source; names are not case-sensitive.

        ``also`` are options that the caller reads, ``more`` are fields of a subclass. With a
        ``pattern`` among them no topics are named.
        """
        check_names(options, (*_OPTIONS, *also), "source")
        address = address or options.get("path")
        subscribed = options.get("subscribe")
        partitions = _parsed_assignment(options.get("assign"))
        ways = [way for way in (subscribed, partitions, more.get("pattern")) if way]
        if not address or len(ways) != 1:
            raise ConfigurationError(
                "the source needs a path and topics, or partitions of topics: "
                '.option("subscribe", "visits").load("file:./topics")'
            )
        named = (name.strip() for name in subscribed.split(",")) if subscribed else ()
        buckets, order = options.get("buckets"), options.get("bucketOrder")
        if order not in (None, *_BUCKET_ORDERS):
            raise ConfigurationError(
                f"bucketOrder is one of {', '.join(_BUCKET_ORDERS)}, not {order!r}"
            )
        if buckets is None and order is not None:
            raise ConfigurationError('bucketOrder goes with .option("buckets", buckets.text)')
        return cls(
            address,
            tuple(partitions or named),
            options.get("startingOffsets", "earliest"),
            count_of(options, "maxPartitions"),
            partitions,
            None if buckets is None else Buckets.of(buckets),
            order,
            **more,
        )

    def starts(self) -> PartitionOffsets:
        """Return the start offsets."""
        if self.starting == "latest":
            return self.look().ends
        if self.starting == "earliest":
            return self.firsts()
        return self._assigned(_starting(self.starting, self._firsts(), self._look().ends))

    def firsts(self) -> PartitionOffsets:
        """Return the offsets of the first records that exist."""
        return self._assigned(self._firsts())

    def _firsts(self) -> PartitionOffsets:
        with Log(self.address) as log:
            return by_partition({topic: log.start_offsets(topic) for topic in self.topics})

    def look(self) -> TopicEnds:
        """Return the ids and end offsets of the topics."""
        seen = self._look()
        return TopicEnds(seen.ids, self._assigned(seen.ends))

    def _look(self) -> TopicEnds:
        with Log(self.address) as log:
            ids = {topic: str(log.topic(topic).id) for topic in self.topics}
            ends = {topic: log.end_offsets(topic) for topic in self.topics}
        return TopicEnds(ids, by_partition(ends))

    def _assigned(self, offsets: PartitionOffsets) -> PartitionOffsets:
        """Return the offsets of the assigned partitions; of all if none are assigned."""
        if self.assigned is None:
            return offsets
        wanted = topic_partitions(self.assigned)
        if missing := next((at for at in wanted if at not in offsets), None):
            count = sum(at.topic == missing.topic for at in offsets)
            raise ConfigurationError(
                f"topic {missing.topic} has no partition {missing.partition}: it has {count}"
            )
        return {at: offsets[at] for at in wanted}

    def times(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> PartitionOffsets:
        """Return the timestamp of the first record of each range of offsets [start, end)."""
        with Log(self.address) as log:
            return {
                at: record.timestamp
                for at, (start, _) in ranges.items()
                for record in log.read(*at, start, limit=1)
            }

    def reads(self, topic: str) -> bool:
        """Return whether a topic of this name is read."""
        return topic in self.topics

    def split(self) -> Split:
        """Return the function that divides the record limit."""
        if self.buckets is None:
            return evenly
        counts = Counter(at.topic for at in self._look().ends)
        groups = {
            TopicPartition(topic, number): bucket
            for topic, count in counts.items()
            for number, bucket in self.buckets.members(count).items()
        }
        if self.bucket_order == "strict":
            return partial(
                grouped, groups=groups, split=partial(in_turn, order=self.buckets.urgency)
            )
        weights = dict(self.buckets.shares)
        return partial(grouped, groups=groups, split=partial(weighted, weights=weights))

    def partitions(
        self, start: PartitionOffsets, end: PartitionOffsets, most: int | None = None
    ) -> list[SourcePartition]:
        """Return the Spark partitions for the records between two offsets, at most ``most``."""
        ranges = [
            OffsetRange(*at, start[at], upto)
            for at, upto in sorted(end.items())
            if upto > start[at]
        ]
        count = min(most or len(ranges), len(ranges))
        return [SourcePartition(ranges[number::count]) for number in range(count)]

    def read(self, wanted: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a Spark partition, each range in offset order."""
        assert isinstance(wanted, SourcePartition)
        freeze_gc()
        for one, columns in self._columns(wanted.ranges):
            if self.buckets is not None:
                self.buckets.check_headers(columns.headers)
            yield _arrow(columns, one)

    def _columns(self, ranges: list[OffsetRange]) -> Iterator[tuple[OffsetRange, Columns]]:
        with Log(self.address) as log:
            for one in ranges:
                for columns in log.read_columns(*one):
                    yield one, columns

    def chunks(self, ranges: list[OffsetRange]) -> Iterator[Chunk]:
        """Yield the records of ranges as chunks, for stream programs."""
        with Log(self.address) as log:
            for one in ranges:
                for first, data in log.read_packed(*one):
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


def _parsed_assignment(text: str | None) -> dict[str, list[int]] | None:
    """Return the partitions that the option ``assign`` names, as in Spark's Kafka source."""
    if text is None:
        return None
    try:
        return {topic: list(map(int, numbers)) for topic, numbers in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"assign={text!r} is no assignment; write '{{\"orders\": [0, 1]}}'"
        ) from error


def _starting(text: str, first: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
    """Return the first offsets, replaced by those that the JSON of Spark's Kafka source names."""
    found = dict(first)
    named = {(at.topic, str(at.partition)): at for at in ends}
    wanted = _parsed(text)
    if others := sorted(wanted.keys() - {at.topic for at in ends}):
        raise ConfigurationError(f"startingOffsets names {others}, which are not subscribed to")
    for topic, offsets in wanted.items():
        for number, offset in offsets.items():
            at = named.get((topic, number))
            if at is None:
                raise ConfigurationError(f"startingOffsets: {topic} has no partition {number!r}")
            begin = {_EARLIEST: first[at], _LATEST: ends[at]}.get(offset, offset)
            if type(begin) is not int or not first[at] <= begin <= ends[at]:
                raise ConfigurationError(
                    f"startingOffsets: partition {number} of {topic} begins at {first[at]} and "
                    f"ends at {ends[at]}, so it has no offset {offset!r}"
                )
            found[at] = begin
    return found


def _parsed(text: str) -> dict[str, dict[str, Any]]:
    try:
        offsets = json.loads(text)
        if isinstance(offsets, dict) and all(isinstance(one, dict) for one in offsets.values()):
            return offsets
    except ValueError:
        pass
    raise ConfigurationError(
        f"startingOffsets={text!r:.60}: use 'earliest', 'latest' or the first offset of "
        """partitions, such as '{"visits": {"0": 17}}'"""
    )


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
