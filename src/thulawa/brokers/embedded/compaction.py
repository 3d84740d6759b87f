"""Compact topics: of each key keep the last record, by Kafka's rules.

The partition is read once to find the last offset of each key, in a scratch database that spills
to disk, so that memory is bounded whatever the number of keys. Then the batches are rewritten from
old to new, a few at a time, and small neighbours are joined. A removed record always has a later
record of its key behind it, so readers and writers can continue meanwhile.

A tombstone is removed ``tombstones`` seconds after a compaction that had passed it. The values
before it are removed by then, and every reader who saw one of them has had that long to read the
tombstone. Batches are rewritten from old to new, so a crash cannot leave a value whose tombstone
is gone.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeAlias

from thulawa.brokers.embedded.batches import Columns, PackedBatch, pack
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.fetching import bounds, fetch, open_batch
from thulawa.brokers.embedded.packing import BATCH_BYTES, BATCH_RECORDS, size_of
from thulawa.brokers.embedded.schema import OFFSET_MASK
from thulawa.brokers.embedded.topic_options import Cleaned
from thulawa.brokers.embedded.topic_table import StoredTopic, id_range
from thulawa.brokers.embedded.writing import insert_batch

_REWRITTEN_AT_ONCE = 8

Run: TypeAlias = list[tuple[int, int, int, int]]  # id, last offset, count, bytes of neighbours


def compact(
    database: Database, topic: StoredTopic, number: int, clock: Callable[[], int]
) -> Cleaned:
    """Compact the records that one partition holds now."""
    partition, tombstones = topic.partition(number), topic.retention.tombstones
    with database.snapshot() as sql:
        start, end = bounds(sql, topic, number)
        settled = _settled(sql, partition, clock(), tombstones)
    cleaned = Cleaned()
    with _scratch() as scratch:
        while start < end:
            chunks, start = fetch(database, topic, number, start, end)
            for chunk in chunks:
                deleted = [value is None for value in chunk.values]
                scratch.executemany(
                    "INSERT OR REPLACE INTO last VALUES (?, ?, ?)",
                    zip(chunk.keys, chunk.offsets, deleted, strict=True),
                )
        scratch.execute("DELETE FROM last WHERE tombstone AND offset < ?", (settled,))
        scratch.execute("CREATE INDEX by_offset ON last (offset)")
        for run in _runs(database, partition, end):
            survivors = _survivors(run, scratch)
            if _worthwhile(run, survivors):
                cleaned += _rewrite(database, topic, number, run, survivors)
    _finish(database, partition, end, clock(), tombstones)
    return cleaned


def _settled(sql: sqlite3.Connection, partition: int, now: int, tombstones: float) -> int:
    """Return the offset below which tombstones have been kept for long enough."""
    (end,) = sql.execute(
        "SELECT max(end_offset) FROM compactions WHERE partition = ? AND finished <= ?",
        (partition, now - round(tombstones * 1000)),
    ).fetchone()
    return end or 0


@contextmanager
def _scratch() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect("", isolation_level=None)) as scratch:
        scratch.execute(
            "CREATE TABLE last (key BLOB PRIMARY KEY, offset INTEGER, tombstone INTEGER)"
            " WITHOUT ROWID"
        )
        scratch.execute("BEGIN")
        yield scratch


def _runs(database: Database, partition: int, end: int) -> Iterator[Run]:
    low, _ = id_range(partition)
    after = low - 1
    while True:
        with database.snapshot() as sql:
            run = sql.execute(
                "SELECT id, last, count, bytes FROM batches WHERE id > ? AND id < ?"
                " ORDER BY id LIMIT ?",
                (after, low + end, _REWRITTEN_AT_ONCE),
            ).fetchall()
        if not run:
            return
        yield run
        after = low + run[-1][1]


def _survivors(run: Run, scratch: sqlite3.Connection) -> set[int]:
    first, last = run[0][0] & OFFSET_MASK, run[-1][1]
    rows = scratch.execute("SELECT offset FROM last WHERE offset BETWEEN ? AND ?", (first, last))
    return {offset for (offset,) in rows}


def _worthwhile(run: Run, survivors: set[int]) -> bool:
    """Return whether a run has superseded records, or batches small enough to be joined."""
    count, size = sum(row[2] for row in run), sum(row[3] for row in run)
    joinable = len(run) > 1 and count <= BATCH_RECORDS and size <= BATCH_BYTES
    return joinable or len(survivors) < count


def _rewrite(
    database: Database, topic: StoredTopic, number: int, run: Run, survivors: set[int]
) -> Cleaned:
    with database.transaction() as sql:
        rows = sql.execute(
            "SELECT id, body FROM batches WHERE id BETWEEN ? AND ? ORDER BY id",
            (run[0][0], run[-1][0]),
        ).fetchall()
        before = [open_batch(row[0] & OFFSET_MASK, row[1], topic, number) for row in rows]
        remaining = [
            columns.select([offset in survivors for offset in columns.offsets])
            for columns in before
        ]
        sql.executemany("DELETE FROM batches WHERE id = ?", ((row[0],) for row in rows))
        size = _insert_joined(sql, topic.partition(number), remaining)
    removed = sum(map(len, before)) - sum(map(len, remaining))
    return Cleaned(removed, sum(len(row[1]) for row in rows) - size)


def _insert_joined(sql: sqlite3.Connection, partition: int, remaining: list[Columns]) -> int:
    """Insert the remaining records, joined to larger batches; return how many bytes they have."""
    joined: list[Columns] = []
    for columns in filter(len, remaining):
        if joined and _fit_together(joined[-1], columns):
            joined[-1] = joined[-1].joined(columns)
        else:
            joined.append(columns)
    size = 0
    for columns in joined:
        batch = PackedBatch(len(columns), max(columns.timestamps), pack(columns))
        insert_batch(sql, partition, batch, first=columns.offsets[0], last=columns.offsets[-1])
        size += len(batch.body)
    return size


def _fit_together(one: Columns, two: Columns) -> bool:
    size = size_of(one) + size_of(two)
    return len(one) + len(two) <= BATCH_RECORDS and size <= BATCH_BYTES


def _finish(database: Database, partition: int, end: int, now: int, tombstones: float) -> None:
    """Store that everything below ``end`` is compacted, and delete outdated rows."""
    with database.transaction() as sql:
        # an older row of the same end stays: its tombstones have waited since then
        sql.execute("INSERT OR IGNORE INTO compactions VALUES (?, ?, ?)", (partition, end, now))
        sql.execute(
            "DELETE FROM compactions WHERE partition = ? AND end_offset < ?",
            (partition, _settled(sql, partition, now, tombstones)),
        )
