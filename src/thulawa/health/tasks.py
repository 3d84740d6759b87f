"""The functions that Spark's Python workers run: they count messages, and return rows per window.

Separate from `thulawa.health.dataframes`, so that workers import Arrow and the broker, not PySpark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from thulawa.brokers.embedded.arrow import by_partition, gathered
from thulawa.brokers.port import Broker
from thulawa.core.gc_freeze import freeze_gc, gc_disabled
from thulawa.core.types import TopicPartition
from thulawa.health.counter import Added, Counter, Messages, Rule, Since

_COUNTED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("window", pa.int64()),
        ("status", pa.string()),
        ("count", pa.int64()),
        ("offset", pa.int64()),
    ]
)
_RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])
_ROWS, _BYTES = 50_000, 32 * 1024 * 1024


class Range(NamedTuple):
    """Messages of a partition to count: from the next offset up to ``end``."""

    partition: TopicPartition
    since: Since
    end: int


@dataclass(frozen=True, slots=True)
class CountRows:
    """Counts Arrow batches of topic, partition, offset, timestamp (ms) and value."""

    rule: Rule
    since: Mapping[TopicPartition, Since]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the messages of one task add to each cell."""
        freeze_gc()
        counters: dict[TopicPartition, Counter] = {}
        for whole in gathered(batches, rows=_ROWS, size=_BYTES):
            for topic, number, part in by_partition(whole):
                partition = TopicPartition(topic, number)
                if partition not in counters:
                    counters[partition] = Counter(self.rule, self.since.get(partition, Since()))
                counters[partition].add(Messages.of(part))
        yield _rows(counters)


@dataclass(frozen=True, slots=True)
class CountRanges:
    """Counts ranges of topics, read in the task; its input rows are indexes into ``shares``."""

    broker: Broker
    shares: Sequence[Sequence[Range]]
    rule: Rule

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the messages of the shares add to each cell."""
        freeze_gc()
        counters: dict[TopicPartition, Counter] = {}
        ranges = [one for number in _numbers(batches) for one in self.shares[number]]
        with gc_disabled():
            for partition, since, end in ranges:
                counter = counters[partition] = Counter(self.rule, since)
                for columns in self.broker.read_columns(partition, since.offset, end):
                    counter.add(Messages(*columns))
        yield _rows(counters)


@dataclass(frozen=True, slots=True)
class ReadPartitions:
    """Reads partitions of a topic to their ends; its input rows are their numbers."""

    broker: Broker
    topic: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records as rows of key, value and offset."""
        topic = self.topic
        starts, ends = (
            self.broker.start_offsets(topic)[topic],
            self.broker.end_offsets(topic)[topic],
        )
        for number in _numbers(batches):
            span = {TopicPartition(topic, number): (starts[number], ends[number])}
            records = self.broker.read(span)
            while some := list(islice(records, _ROWS)):
                yield _batch([(one.key, one.value, one.offset) for one in some], _RECORDS)


def added_by(counted: pa.Table | pa.RecordBatch) -> dict[TopicPartition, list[Added]]:
    """Return the rows of all tasks by partition; a cell may occur in the rows of several tasks."""
    found: dict[TopicPartition, list[Added]] = {}
    columns = (counted[name].to_pylist() for name in _COUNTED.names)
    for topic, number, *added in zip(*columns, strict=True):
        found.setdefault(TopicPartition(topic, number), []).append(Added(*added))
    return found


def _numbers(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def _rows(counters: Mapping[TopicPartition, Counter]) -> pa.RecordBatch:
    rows = [(*partition, *added) for partition, one in counters.items() for added in one.added()]
    return _batch(rows, _COUNTED)


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)
