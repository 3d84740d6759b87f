"""What travels between the stages of a query: packed records, a handful of rows per batch.

Spark's cost is by the row, so records travel packed: one row holds many records of one
partition, or all that one task has for another. ``slot`` is the column rows are shuffled by,
``stage`` and ``task`` say who they are for (stage `SINK`: they leave), ``place`` puts the rows
of a partition back in order after a shuffle. A stage is told the time of the batch with each.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from thulawa.core.records import Headers
from thulawa.runtime.queues import RawRecord
from thulawa.state.codec import Codec

__all__ = [
    "CLOCK",
    "PACKED",
    "SINK",
    "Outgoing",
    "Packed",
    "Topic",
    "pack_outgoing",
    "pack_rows",
    "packed_batch",
    "slots",
    "unpack_outgoing",
    "unpack_rows",
]

PACKED = "slot int, stage int, task int, topic string, part int, place string, data binary"
OUTGOING = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_PACKED_SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("stage", pa.int32()),
        ("task", pa.int32()),
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("place", pa.string()),
        ("data", pa.binary()),
    ]
)
SINK = -1
CLOCK = ""  # in the place of a topic: the row only wakes its task


class Topic(NamedTuple):
    """A partition of a topic, or of a repartition."""

    name: str
    partition: int


class Packed(NamedTuple):
    """One row."""

    slot: int
    stage: int
    task: int
    topic: str
    part: int
    place: str
    data: bytes


def packed_batch(rows: Iterable[Packed]) -> pa.RecordBatch:
    """Give rows to Spark."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_PACKED_SCHEMA)
    arrays = [
        pa.array(column, kind.type) for column, kind in zip(columns, _PACKED_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKED_SCHEMA)


# --- records of a source, as Arrow


def pack_rows(batch: pa.RecordBatch) -> bytes:
    """Pack rows of one partition of a source."""
    kept = batch.select(["key", "value", "offset", "timestamp", "headers"])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, kept.schema) as writer:
        writer.write_batch(kept)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_rows(data: bytes) -> Iterator[RawRecord]:
    """Give the records of packed rows."""
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            yield from raw_records(batch)


def raw_records(batch: pa.RecordBatch) -> Iterator[RawRecord]:
    """Give the rows of a source as records of a task."""
    times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return zip(
        listed(batch.column("offset")),
        listed(times),
        listed(batch.column("key")),
        listed(batch.column("value")),
        _headers(batch.column("headers")),
        strict=False,
    )


def listed(column: pa.Array) -> list[Any]:
    """Give a column as Python values; several times as fast as ``to_pylist``."""
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values if column.null_count == 0 or column.type != pa.int64() else column.to_pylist()


def _headers(column: pa.Array) -> Iterable[Headers]:
    if column.null_count == len(column):
        return repeat(())
    return [
        tuple((one["key"], one["value"]) for one in headers or ()) for headers in column.to_pylist()
    ]


# --- records that leave


class Outgoing:
    """Records for topics, column by column."""

    __slots__ = ("_add", "_rows")

    def __init__(self) -> None:
        self._rows: list[tuple[Any, str, int | None, int, Headers]] = []
        self._add = self._rows.append

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        record: tuple[bytes | None, bytes | None],
        topic: str,
        partition: int | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Take one record: its key and value, and where it goes."""
        self._add((record, topic, partition, timestamp, headers))

    def batch(self) -> pa.RecordBatch:
        """Give the records as rows for a sink."""
        records, topics, partitions, timestamps, all_headers = zip(*self._rows, strict=True)
        keys, values = zip(*records, strict=True)
        kind = OUTGOING.field("headers").type
        headers = pa.nulls(len(records), kind)
        if any(all_headers):
            listed_headers = [
                [{"key": name, "value": value} for name, value in one] or None
                for one in all_headers
            ]
            headers = pa.array(listed_headers, kind)
        times = pa.array(timestamps, pa.int64()).cast(pa.timestamp("ms")).cast(pa.timestamp("us"))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array(topics, pa.string()),
                pa.array(partitions, pa.int32()),
                times.cast(pa.timestamp("us", "UTC")),
                headers,
            ],
            schema=OUTGOING,
        )


def pack_outgoing(records: Outgoing) -> bytes:
    """Pack records that leave."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, OUTGOING) as writer:
        writer.write_batch(records.batch())
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_outgoing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the records of packed rows to a sink."""
    for batch in batches:
        for data in batch.column("data"):
            with pa.ipc.open_stream(data.as_buffer()) as reader:
                yield from reader


# --- records between tasks

_codec = Codec()


def pack_records(records: list[RawRecord], codec: Codec = _codec) -> bytes:
    """Pack what one task has for another."""
    return codec.encode(records)


def unpack_records(data: bytes, codec: Codec = _codec) -> list[RawRecord]:
    """Give what one task had for another."""
    return codec.decode(data)


# --- slots


def slots(count: int) -> list[int]:
    """Give one number for each of ``count`` shuffle partitions, such that Spark puts it there.

    >>> slots(4)
    [12, 6, 2, 0]
    """
    found: dict[int, int] = {}
    value = 0
    while len(found) < count:
        found.setdefault(_spark_hash(value) % count, value)
        value += 1
    return [found[place] for place in range(count)]


def _spark_hash(value: int, seed: int = 42) -> int:
    """Hash an int as Spark does: Murmur3, seed 42; the sign matters for the remainder."""
    mask = 0xFFFFFFFF

    def rotated(number: int, bits: int) -> int:
        return (number << bits | number >> 32 - bits) & mask

    mixed = rotated((value & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    hashed = (rotated(seed ^ mixed, 13) * 5 + 0xE6546B64) & mask
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & mask
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & mask
    hashed ^= hashed >> 16
    return hashed - 2**32 if hashed & 2**31 else hashed
