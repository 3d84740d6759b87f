"""What travels between the stages of a query: packed records, a handful of rows per batch.

Spark's cost is by the row, so records travel packed: one row holds many records of one
partition, or all that one task has for another. ``slot`` is the column rows are shuffled by,
``stage`` and ``task`` say who they are for (stage `SINK`: they leave). ``place`` puts rows back in
order after a shuffle, whose sort does not keep the order of rows of one slot once it spills: no two
rows of a batch for one partition have the same place. A stage is told the time of the batch with
each row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from thulawa.brokers.embedded.batches import Columns, unpack
from thulawa.brokers.embedded.packing import Fields, fields_of, packed_plainly
from thulawa.brokers.records import ProducerRecord
from thulawa.core.records import Headers
from thulawa.runtime.blocks import Block, RawRecord
from thulawa.state.codec import Codec

__all__ = [
    "ANY",
    "AT_END",
    "BEHIND",
    "CLOCK",
    "COUNTS",
    "PACKED",
    "SINK",
    "Outgoing",
    "Packed",
    "Topic",
    "as_block",
    "block_of",
    "opened_records",
    "packed_batch",
    "records_of",
    "slots",
    "unpack_outgoing",
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
ROW_BYTES = 2**24  # a row is cut before it holds more than this, uncompressed
SINK = -1
ANY = -1  # in the place of a partition: the key of each record decides
CLOCK = ""  # in the place of a topic: the row only wakes its task
COUNTS = "/counts"  # in the place of a topic: counts of the front, to be reported
BEHIND, AT_END = b"+", b"-"  # in the place of records: whether the broker has more of a partition


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


# --- records of a source and records that leave: batches as the log packs them


def block_of(row: Packed) -> Block:
    """Give the records of a source that a row holds; its place ends with the first one's offset."""
    return as_block(unpack(row.data, int(row.place.rpartition("/")[2])))


def as_block(columns: Columns) -> Block:
    """Give records of a log as a task takes them."""
    headers: Any = columns.headers
    return Block(columns.offsets, columns.timestamps, columns.keys, columns.values, headers)


def records_of(row: Packed) -> Iterable[RawRecord]:
    """Give the records of a source that a row holds, one by one."""
    return block_of(row).records()


def opened_records(block: Block, codec: Codec) -> list[RawRecord]:
    """Return the records of a repartition's topic as they were sent: keys and values, not bytes."""
    decode = codec.decode
    return [
        (offset, time, decode(key)[0], decode(value)[0], headers)
        for offset, time, key, value, headers in block.records()
    ]


class Outgoing:
    """Records for topics, by topic and by the partition that somebody chose for them."""

    __slots__ = ("_columns", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None], list[ProducerRecord]] = defaultdict(list)
        self._columns: dict[str, list[Fields]] = defaultdict(list)  # they come before the rows

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Take one record."""
        # a plain tuple: it is one until somebody asks for its parts by name, and nobody does
        record: Any = (key, value, headers, timestamp, None)
        self._rows[topic, partition].append(record)

    def taker(self, topic: str) -> Callable[[Any], None]:
        """Give what takes records of a topic as they are: key, value, headers, timestamp, None."""
        return self._rows[topic, None].append

    def take_columns(self, topic: str, records: Fields) -> None:
        """Take many records of a topic."""
        rows = self._rows[topic, None]
        if rows:
            self._columns[topic].append(fields_of(rows))
            rows.clear()
        self._columns[topic].append(records)

    def take(self) -> Iterator[tuple[str, int, bytes]]:
        """Give the records in batches, topic, partition or `ANY`, batch; none of them stays."""
        for topic, parts in self._columns.items():
            for records in parts:
                for data in packed_plainly(records, topic):
                    yield topic, ANY, data
        self._columns.clear()
        for (topic, partition), rows in self._rows.items():
            if rows:
                for data in packed_plainly(fields_of(rows), topic):
                    yield topic, ANY if partition is None else partition, data
            rows.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._columns.clear()
        for rows in self._rows.values():
            rows.clear()


def unpack_outgoing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the records of packed rows to a sink that takes rows."""
    for batch in batches:
        for topic, part, data in zip(
            *(batch.column(name).to_pylist() for name in ("topic", "part", "data")), strict=True
        ):
            yield _outgoing_rows(topic, part, unpack(data, 0))


def _outgoing_rows(topic: str, part: int, columns: Columns) -> pa.RecordBatch:
    count = len(columns)
    kind = OUTGOING.field("headers").type
    headers = pa.nulls(count, kind)
    if any(columns.headers):
        listed = [
            [{"key": name, "value": value} for name, value in one] or None
            for one in columns.headers
        ]
        headers = pa.array(listed, kind)
    times = pa.array(columns.timestamps, pa.int64()).cast(pa.timestamp("ms"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns.keys, pa.binary()),
            pa.array(columns.values, pa.binary()),
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(None if part == ANY else part, pa.int32()), count),
            times.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            headers,
        ],
        schema=OUTGOING,
    )


# --- records between tasks


def pack_records(records: list[RawRecord], codec: Codec) -> Iterator[bytes]:
    """Yield what one task has for another, in order, cut such that no row is beyond `ROW_BYTES`.

    Spark and Arrow hold no row of 2 GiB. A single record is not cut.
    """
    return codec.encode_cut(records, ROW_BYTES)


def unpack_records(data: bytes, codec: Codec) -> list[RawRecord]:
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
