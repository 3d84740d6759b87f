"""The rows that pass between the stages of a query: packed records, a few rows per micro-batch.

Spark's costs grow with the number of rows, so a row holds many records of one partition, or
all records that one task sends to another. Rows are shuffled by ``slot``; ``stage`` and ``task``
address them (stage `SINK`: they go to the sink). ``place`` is a sort key, because a shuffle that
spills does not preserve the order of the rows of a slot; no two rows of a micro-batch for one
partition have the same place. Each row also carries the time of the micro-batch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from thulawa.brokers.embedded.batches import Columns, unpack
from thulawa.brokers.embedded.packing import Fields, fields_of, packed_plainly
from thulawa.core.records import Headers
from thulawa.core.types import ProducerRecord
from thulawa.runtime.blocks import Block, RawRecord
from thulawa.state.codec import ColumnCodec

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
SINK = -1
ANY = -1  # partition: chosen by the key of each record
CLOCK = ""  # topic of a row without records, which only wakes its task
COUNTS = "/counts"  # topic of a row with drop counts of the first stage
BEHIND, AT_END = b"+", b"-"  # data of a row that says whether a partition has unread records


class Packed(NamedTuple):
    """One row between stages."""

    slot: int
    stage: int
    task: int
    topic: str
    part: int
    place: str
    data: bytes


_TYPES = {int: ("int", pa.int32()), str: ("string", pa.string()), bytes: ("binary", pa.binary())}
_FIELDS = {name: _TYPES[kind] for name, kind in Packed.__annotations__.items()}
PACKED = ", ".join(f"{name} {kind}" for name, (kind, _) in _FIELDS.items())  # Spark's schema
_PACKED_SCHEMA = pa.schema([(name, kind) for name, (_, kind) in _FIELDS.items()])


def packed_batch(rows: Iterable[Packed]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_PACKED_SCHEMA)
    arrays = map(pa.array, columns, _PACKED_SCHEMA.types)
    return pa.RecordBatch.from_arrays(list(arrays), schema=_PACKED_SCHEMA)


def bounded(rows: Iterable[Packed], size: int) -> Iterator[list[Packed]]:
    """Yield rows in lists, each of which ends with the row that reaches this many bytes of data."""
    some: list[Packed] = []
    held = 0
    for row in rows:
        some.append(row)
        held += len(row.data)
        if held >= size:
            yield some
            some, held = [], 0
    if some:
        yield some


# --- records of a source and records that leave: batches as the log packs them


def block_of(row: Packed) -> Block:
    """Return the source records of a row; its place ends with the offset of the first one."""
    return as_block(unpack(row.data, int(row.place.rpartition("/")[2])))


def as_block(columns: Columns) -> Block:
    """Return records of a log as a block for a task."""
    headers: Any = columns.headers
    return Block(columns.offsets, columns.timestamps, columns.keys, columns.values, headers)


def opened_records(block: Block, codec: ColumnCodec) -> list[RawRecord]:
    """Return the records of a repartition topic with decoded keys and values."""
    decode = codec.decode
    return [
        (offset, time, decode(key)[0], decode(value)[0], headers)
        for offset, time, key, value, headers in block.records()
    ]


class Outgoing:
    """Buffer of output records, by topic and chosen partition."""

    __slots__ = ("_columns", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None], list[ProducerRecord]] = defaultdict(list)
        self._columns: dict[str, list[Fields]] = defaultdict(list)  # sent before the rows

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Add one record."""
        # a plain tuple is cheaper, and nothing reads its fields by name
        record: Any = (key, value, headers, timestamp, None)
        self._rows[topic, partition].append(record)

    def adder(self, topic: str) -> Callable[[Any], None]:
        """Return a function that adds tuples of key, value, headers, timestamp and None."""
        return self._rows[topic, None].append

    def add_columns(self, topic: str, records: Fields) -> None:
        """Add many records of a topic."""
        rows = self._rows[topic, None]
        if rows:
            self._columns[topic].append(fields_of(rows))
            rows.clear()
        self._columns[topic].append(records)

    def take(self) -> Iterator[tuple[str, int, bytes]]:
        """Remove all records; yield them packed, as topic, partition or `ANY`, and data."""
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
        """Discard all records."""
        self._columns.clear()
        for rows in self._rows.values():
            rows.clear()


def unpack_outgoing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of packed rows as one row each, for a sink that takes records."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("topic", "part", "data")]
        for topic, part, data in zip(*columns, strict=True):
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


# --- slots


def slots(count: int) -> list[int]:
    """Return, for each of ``count`` shuffle partitions, a number that Spark's hash sends there.

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
    """Return Spark's hash of an int: Murmur3 with seed 42, as a signed number."""
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
