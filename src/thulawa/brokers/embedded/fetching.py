"""Reading: a few batches at a time, each time on a snapshot of its own.

A reader asks for offsets [start, end) and gets every record there is between them. Compaction
leaves gaps, which are passed over. Retention moves the partition's start: a reader that stands
below it has missed records, and is told so (`OffsetOutOfRange`) rather than moved on. The bounds
and the batches come from the same snapshot, so neither can change in between.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from thulawa.brokers.embedded.batches import Columns, pack, unpack
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.schema import PARTITION_BITS
from thulawa.brokers.embedded.topic_table import StoredTopic, find, id_range
from thulawa.core.types import ConsumerRecord
from thulawa.errors import DamagedLog, OffsetOutOfRange, UnknownTopic

_BATCHES_AT_ONCE = 16
_BYTES_AT_ONCE = 8 * 1024 * 1024
_OFFSET = (1 << PARTITION_BITS) - 1

# From the batch that holds the offset, or else from the first one behind it.
_SELECT = """
SELECT id, last, bytes, body FROM batches
WHERE id BETWEEN coalesce((SELECT max(id) FROM batches WHERE id BETWEEN ? AND ?), ?) AND ?
AND last >= ?
ORDER BY id
"""


_Blob: TypeAlias = tuple[int, int, bytes]  # row id, offset of the last record, batch


@dataclass(frozen=True, slots=True)
class Fetched:
    """Some records, and the offset from which to go on."""

    chunks: list[Columns]
    next: int


def offsets(sql: sqlite3.Connection, topic: StoredTopic) -> dict[int, tuple[int, int]]:
    """Give the bounds of each partition: offsets in [start, end)."""
    rows = sql.execute(
        "SELECT number, start_offset, end_offset FROM partitions WHERE topic = ? ORDER BY number",
        (topic.id,),
    )
    return {number: (start, end) for number, start, end in rows}


def bounds(sql: sqlite3.Connection, topic: StoredTopic, number: int) -> tuple[int, int]:
    """Give the bounds of one partition."""
    row = sql.execute(
        "SELECT start_offset, end_offset FROM partitions WHERE id = ?", (topic.partition(number),)
    ).fetchone()
    if row is None:
        raise UnknownTopic("the topic has been deleted", topic=topic.name)
    start, end = row
    return start, end


def fetch(
    database: Database, topic: StoredTopic, number: int, start: int, *, end: int | None = None
) -> Fetched:
    """Give the records of the next few batches from ``start`` on, and before ``end``."""
    end, blobs, following = _blobs(database, topic, number, start, end)
    chunks = [
        open_batch(identity, body, topic, number).between(start, end) for identity, _, body in blobs
    ]
    return Fetched([chunk for chunk in chunks if len(chunk)], following)


def _blobs(
    database: Database, topic: StoredTopic, number: int, start: int, end: int | None
) -> tuple[int, list[_Blob], int]:
    """Give where to stop, some batches that lie before, and the offset behind them."""
    with database.snapshot() as sql:
        lowest, highest = bounds(sql, topic, number)
        end = highest if end is None else end
        for offset in (start, end):
            if not lowest <= offset <= highest:
                raise OffsetOutOfRange(
                    f"the log holds the offsets {lowest} to {highest} (not included)",
                    topic=topic.name,
                    partition=number,
                    offset=offset,
                    start=lowest,
                    end=highest,
                )
        if start >= end:
            return end, [], start
        return end, *_select(sql, topic.partition(number), start, end)


def _select(
    sql: sqlite3.Connection, partition: int, start: int, end: int
) -> tuple[list[_Blob], int]:
    """Give some batches, bounded by number and size, and the offset behind them."""
    low, _ = id_range(partition)
    rows = sql.execute(_SELECT, (low, low + start, low + start, low + end - 1, start))
    blobs: list[_Blob] = []
    room = _BYTES_AT_ONCE
    for identity, last, size, body in rows:
        blobs.append((identity, last, body))
        room -= size
        if len(blobs) == _BATCHES_AT_ONCE or room <= 0:
            rows.close()
            return blobs, min(last + 1, end)
    return blobs, end


def open_batch(identity: int, body: bytes, topic: StoredTopic, number: int) -> Columns:
    """Unpack a batch; if it is damaged, say where."""
    first = identity & _OFFSET
    try:
        return unpack(body, first)
    except DamagedLog as error:
        error.topic, error.partition, error.offset = topic.name, number, first
        raise


def read_columns(
    database: Database, name: str, number: int, start: int, end: int | None = None
) -> Iterator[Columns]:
    """Give the records in [start, end) in chunks of columns; ``end`` None: up to the end now."""
    with database.snapshot() as sql:
        topic = find(sql, name)
        end = bounds(sql, topic, number)[1] if end is None else end
    while True:
        fetched = fetch(database, topic, number, start, end=end)
        yield from fetched.chunks
        start = fetched.next
        if start >= end:
            return


def read_packed(
    database: Database, name: str, number: int, start: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """Give the batches of [start, end) as they are stored, each with its first offset.

    What is beyond the bounds is cut off. Damage is found by whoever unpacks a batch.
    """
    with database.snapshot() as sql:
        topic = find(sql, name)
    while start < end:
        _, blobs, following = _blobs(database, topic, number, start, end)
        for identity, last, body in blobs:
            first = identity & _OFFSET
            if start <= first and last < end:
                yield first, body
            elif len(cut := open_batch(identity, body, topic, number).between(start, end)):
                yield cut.offsets[0], pack(cut)
        start = following


def read(
    database: Database,
    name: str,
    number: int,
    start: int,
    end: int | None = None,
    limit: int | None = None,
) -> Iterator[ConsumerRecord]:
    """Give the records in [start, end), at most ``limit`` of them."""
    chunks = read_columns(database, name, number, start, end)
    return islice((record for chunk in chunks for record in records_of(chunk, name, number)), limit)


def records_of(chunk: Columns, topic: str, number: int) -> Iterator[ConsumerRecord]:
    """Give the records of a chunk one by one."""
    for offset, timestamp, key, value, headers in chunk.rows():
        yield ConsumerRecord(topic, number, offset, timestamp, key, value, headers)
