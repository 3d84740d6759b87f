"""The functions that Spark's Python workers run: they count messages, and return rows per window.

Separate from `thulawa.health.spark_jobs`, so that workers import Arrow and the log, not PySpark.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from thulawa.brokers.embedded.arrow import by_partition, gathered
from thulawa.brokers.port import Broker
from thulawa.core.gc_freeze import freeze_gc, gc_disabled
from thulawa.core.types import TopicPartition
from thulawa.health.counter import Added, Counter, Messages, Rule, Since

__all__ = ["COUNTED", "CountRanges", "CountRows", "Range", "added_by", "counted_shares"]

COUNTED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("window", pa.int64()),
        ("status", pa.string()),
        ("count", pa.int64()),
        ("offset", pa.int64()),
    ]
)
_ROWS, _BYTES = 50_000, 32 * 1024 * 1024


class Range(NamedTuple):
    """Messages of a partition to count: from the next offset up to ``end``."""

    place: TopicPartition
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
            for topic, partition, part in by_partition(whole):
                place = TopicPartition(topic, partition)
                if place not in counters:
                    counters[place] = Counter(self.rule, self.since.get(place, Since()))
                counters[place].add(Messages.of(part))
        yield _rows(counters)


@dataclass(frozen=True, slots=True)
class CountRanges:
    """Counts ranges of topics, read in the task; its input rows are indexes into ``shares``."""

    broker: Broker
    shares: Sequence[Sequence[Range]]
    rule: Rule

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the messages of the shares add to each cell."""
        yield counted_shares(batches, self.shares, self.rule, self._read)

    def _read(self, wanted: Range) -> Iterator[Messages]:
        columns = self.broker.read_columns(wanted.place, wanted.since.offset, wanted.end)
        return (Messages(*one) for one in columns)


def counted_shares(
    batches: Iterable[pa.RecordBatch],
    shares: Sequence[Sequence[Range]],
    rule: Rule,
    read: Callable[[Range], Iterable[Messages]],
) -> pa.RecordBatch:
    """Read and count the ranges of the shares whose indexes are the rows of a task."""
    freeze_gc()
    counters: dict[TopicPartition, Counter] = {}
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    with gc_disabled():
        for one in (one for number in numbers for one in shares[number]):
            counter = counters[one.place] = Counter(rule, one.since)
            for messages in read(one):
                counter.add(messages)
    return _rows(counters)


def added_by(counted: pa.Table | pa.RecordBatch) -> dict[TopicPartition, list[Added]]:
    """Return the rows of all tasks by partition; a cell may occur in the rows of several tasks."""
    found: dict[TopicPartition, list[Added]] = {}
    columns = (counted[name].to_pylist() for name in COUNTED.names)
    for topic, partition, *added in zip(*columns, strict=True):
        found.setdefault(TopicPartition(topic, partition), []).append(Added(*added))
    return found


def _rows(counters: Mapping[TopicPartition, Counter]) -> pa.RecordBatch:
    rows = [(*place, *added) for place, counter in counters.items() for added in counter.added()]
    columns = zip(*rows, strict=True) if rows else [()] * len(COUNTED)
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, COUNTED.types, strict=True)],
        schema=COUNTED,
    )
