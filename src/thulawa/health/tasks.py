"""The functions that Spark's Python workers run: they count messages, and return rows per window.

Separate from `thulawa.health.spark_jobs`, so that workers import Arrow and the log, not PySpark.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from thulawa.brokers.embedded import Log
from thulawa.brokers.embedded.arrow import by_partition, gathered, read_arrow
from thulawa.core.gc_freeze import freeze_gc, gc_disabled
from thulawa.health.columns import Added, Counter, Messages, Rule, Since
from thulawa.health.model import Place

__all__ = ["COUNTED", "CountLog", "CountRows", "Range", "added_by", "counted_shares"]

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

    place: Place
    since: Since
    end: int


@dataclass(frozen=True, slots=True)
class CountRows:
    """Counts Arrow batches of topic, partition, offset, timestamp (ms) and value."""

    rule: Rule
    since: Mapping[Place, Since]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the messages of one task add to each cell."""
        freeze_gc()
        counters: dict[Place, Counter] = {}
        for whole in gathered(batches, rows=_ROWS, size=_BYTES):
            for topic, partition, part in by_partition(whole):
                place = Place(topic, partition)
                if place not in counters:
                    counters[place] = Counter(self.rule, self.since.get(place, Since()))
                counters[place].add(Messages.of(part))
        yield _rows(counters)


@dataclass(frozen=True, slots=True)
class CountLog:
    """Counts ranges of the embedded log; its input rows are indexes into ``shares``."""

    address: str
    shares: Sequence[Sequence[Range]]
    rule: Rule

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the messages of the shares add to each cell."""
        with Log(self.address) as log:

            def read(wanted: Range) -> Iterator[Messages]:
                topic, partition = wanted.place
                rows = read_arrow(log, topic, partition, wanted.since.offset, wanted.end)
                return map(Messages.of, gathered(rows, rows=_ROWS, size=_BYTES))

            yield counted_shares(batches, self.shares, self.rule, read)


def counted_shares(
    batches: Iterable[pa.RecordBatch],
    shares: Sequence[Sequence[Range]],
    rule: Rule,
    read: Callable[[Range], Iterable[Messages]],
) -> pa.RecordBatch:
    """Read and count the ranges of the shares whose indexes are the rows of a task."""
    freeze_gc()
    counters: dict[Place, Counter] = {}
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    with gc_disabled():
        for one in (one for number in numbers for one in shares[number]):
            counter = counters[one.place] = Counter(rule, one.since)
            for messages in read(one):
                counter.add(messages)
    return _rows(counters)


def added_by(counted: pa.Table | pa.RecordBatch) -> dict[Place, list[Added]]:
    """Return the rows of all tasks by partition; a cell may occur in the rows of several tasks."""
    found: dict[Place, list[Added]] = {}
    columns = (counted[name].to_pylist() for name in COUNTED.names)
    for topic, partition, *added in zip(*columns, strict=True):
        found.setdefault(Place(topic, partition), []).append(Added(*added))
    return found


def _rows(counters: Mapping[Place, Counter]) -> pa.RecordBatch:
    rows = [(*place, *added) for place, counter in counters.items() for added in counter.added()]
    columns = zip(*rows, strict=True) if rows else [()] * len(COUNTED)
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, COUNTED.types, strict=True)],
        schema=COUNTED,
    )
