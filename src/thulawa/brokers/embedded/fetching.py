"""Fetch batches: a few at a time, each time on a snapshot of its own.

A reader asks for offsets [start, end) and gets every record there is between them. Compaction
leaves gaps, which are skipped. Retention moves the partition's start: a reader whose offset is
below it has missed records, and gets `OffsetOutOfRange`. The bounds and the batches come from the
same snapshot, so neither can change in between.
"""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from thulawa.brokers.embedded.batches import Columns, unpack
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.schema import OFFSET_MASK
from thulawa.brokers.embedded.topic_table import StoredTopic, id_range
from thulawa.core.types import ConsumerRecord
from thulawa.errors import DamagedLog, OffsetOutOfRange, UnknownTopic

_MAX_BATCHES = 16
_MAX_BYTES = 8 * 1024 * 1024

# From the batch that holds the offset, or else from the first one behind it.
_SELECT = """
SELECT id, last, bytes, body FROM batches
WHERE id BETWEEN coalesce((SELECT max(id) FROM batches WHERE id BETWEEN ? AND ?), ?) AND ?
AND last >= ?
ORDER BY id
"""


class StoredBatch(NamedTuple):
    """A packed batch, with the offsets of its first and its last record."""

    first: int
    last: int
    body: bytes


class Fetched(NamedTuple):
    """Some records, and the offset from which to continue."""

    chunks: list[Columns]
    next: int


def bounds(sql: sqlite3.Connection, topic: StoredTopic, number: int) -> tuple[int, int]:
    """Return the bounds of a partition: offsets in [start, end)."""
    row: tuple[int, int] | None = sql.execute(
        "SELECT start_offset, end_offset FROM partitions WHERE id = ?", (topic.partition(number),)
    ).fetchone()
    if row is None:
        raise UnknownTopic("the topic has been deleted", topic=topic.name)
    return row


def fetch(
    database: Database, topic: StoredTopic, number: int, start: int, end: int | None = None
) -> Fetched:
    """Return the records of the next few batches from ``start`` on, and before ``end``."""
    batches, end, following = fetch_packed(database, topic, number, start, end)
    chunks = [open_batch(one.first, one.body, topic, number).between(start, end) for one in batches]
    return Fetched([chunk for chunk in chunks if len(chunk)], following)


def fetch_packed(
    database: Database, topic: StoredTopic, number: int, start: int, end: int | None
) -> tuple[list[StoredBatch], int, int]:
    """Return some batches of [start, end), the end, and the offset behind these batches."""
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
            return [], end, start
        batches, following = _select(sql, topic.partition(number), start, end)
        return batches, end, following


def _select(
    sql: sqlite3.Connection, partition: int, start: int, end: int
) -> tuple[list[StoredBatch], int]:
    """Return some batches, bounded by number and size, and the offset behind them."""
    low, _ = id_range(partition)
    rows = sql.execute(_SELECT, (low, low + start, low + start, low + end - 1, start))
    batches: list[StoredBatch] = []
    room = _MAX_BYTES
    for identity, last, size, body in rows:
        batches.append(StoredBatch(identity & OFFSET_MASK, last, body))
        room -= size
        if len(batches) == _MAX_BATCHES or room <= 0:
            rows.close()
            return batches, min(last + 1, end)
    return batches, end


def open_batch(first: int, body: bytes, topic: StoredTopic, number: int) -> Columns:
    """Unpack a batch; an error about a damaged one names its partition and offset."""
    try:
        return unpack(body, first)
    except DamagedLog as error:
        error.topic, error.partition, error.offset = topic.name, number, first
        raise


def records_of(chunk: Columns, topic: str, number: int) -> Iterator[ConsumerRecord]:
    """Yield the records of a chunk one by one."""
    for offset, timestamp, key, value, headers in chunk.rows():
        yield ConsumerRecord(topic, number, offset, timestamp, key, value, headers)
