"""Records as Arrow columns, straight from packed batches: no Python object for each record.

A batch is stored in columns, each value behind the one before, as in Arrow. So keys and values are
not copied, but found by one sum over their lengths; numbers are copied, since they must be aligned.
"""

from collections.abc import Iterable, Iterator
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from thulawa.brokers.columns import counting
from thulawa.brokers.embedded.batches import layout
from thulawa.brokers.embedded.log import Log


def read_arrow(
    log: Log, topic: str, partition: int, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records in [start, end) as batches of offset, timestamp (ms), key and value."""
    for first, blob in log.read_packed(topic, partition, start, end):
        yield unpack_arrow(blob, first)


def unpack_arrow(blob: bytes, first: int) -> pa.RecordBatch:
    """Unpack a blob whose first record has offset ``first``; raise `DamagedLog` if damaged."""
    count, gaps, at, lengths_at, _, data = layout(blob)
    timestamps = _numbers(blob, at, count, pa.int64())
    distances = counting(count) if gaps < 0 else _numbers(blob, gaps, count, pa.int64())
    offsets = pc.add(distances, first)
    lengths = _numbers(blob, lengths_at, 2 * count, pa.int32())
    present = pc.greater_equal(lengths, 0)
    ends = pc.cumulative_sum(pc.if_else(present, lengths, _nothing()))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    validity = None if present.false_count == 0 else present.buffers()[1]
    buffers = [validity, starts.buffers()[1], pa.py_buffer(blob).slice(data)]
    keys, values = (
        pa.Array.from_buffers(pa.binary(), count, buffers, offset=at) for at in (0, count)
    )
    return pa.record_batch(
        {"offset": offsets, "timestamp": timestamps, "key": keys, "value": values}
    )


@cache
def _nothing() -> pa.Scalar:
    # not a constant: Arrow imports pandas to create one, which costs every importer time
    return pa.scalar(0, pa.int32())


def gathered(
    batches: Iterable[pa.RecordBatch], *, rows: int, size: int
) -> Iterator[pa.RecordBatch]:
    """Join small batches to about so many rows or bytes."""
    waiting: list[pa.RecordBatch] = []
    count = held = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        held += batch.nbytes
        if count >= rows or held >= size:
            yield from _joined(waiting)
            waiting, count, held = [], 0, 0
    if count:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield the rows of each topic and partition; most often they are all of one."""
    topics, partitions = batch.column("topic"), batch.column("partition")
    table = pa.table({"topic": topics, "partition": partitions})
    pairs = table.group_by(["topic", "partition"], use_threads=False).aggregate([]).to_pylist()
    for topic, partition in sorted((pair["topic"], pair["partition"]) for pair in pairs):
        if len(pairs) == 1:
            yield topic, partition, batch
            return
        own = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
        yield topic, partition, batch.filter(own)


def _numbers(blob: bytes, at: int, count: int, kind: pa.DataType) -> pa.Array:
    width = kind.bit_width // 8
    copied = pa.py_buffer(blob[at : at + width * count])
    return pa.Array.from_buffers(kind, count, [None, copied])
