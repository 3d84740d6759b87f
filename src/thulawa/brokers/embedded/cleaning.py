"""Clean topics: apply retention, then compaction.

All work is done in short transactions, so that writers wait for milliseconds and readers not at
all. Each leaves the log consistent: a process that is killed between two leaves only work for the
next. A file lock, which the kernel releases when a process dies, allows one cleaner at a time.

Retention moves the start of the partition first and removes the batches below it afterwards. A
record with a timestamp in the future does not keep older records behind it for ever: it is removed
together with the first expired one that was written after it.
"""

import fcntl
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from thulawa.brokers.embedded.compaction import compact
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.topic_options import Cleaned
from thulawa.brokers.embedded.topic_table import StoredTopic, find, id_range, sweep

_REMOVED_AT_ONCE = 64


def clean(database: Database, name: str, clock: Callable[[], int], *, wait: bool = True) -> Cleaned:
    """Apply retention and compaction to a topic; the clock returns milliseconds.

    While another cleaner is at work, wait for it, or leave everything to it.
    """
    with database.snapshot() as sql:
        topic = find(sql, name)
    cleaned = Cleaned()
    with _lock(database.folder, wait=wait) as locked:
        if not locked:
            return cleaned
        for number, partition in enumerate(topic.partitions):
            if topic.retention.limits:
                cleaned += _retain(database, topic, partition, clock())
            if topic.compact:
                cleaned += compact(database, topic, number, clock)
            _note_cleaned(database, partition)
        sweep(database)
    return cleaned


def delete_records(database: Database, name: str, before: Mapping[int, int]) -> Cleaned:
    """Delete the records of a topic below an offset of each partition.

    While another cleaner is at work, their space is left to the next call.
    """
    with database.transaction() as sql:
        topic = find(sql, name)
        sql.executemany(
            "UPDATE partitions SET start_offset = max(start_offset, min(?, end_offset))"
            " WHERE id = ?",
            [(offset, topic.partition(number)) for number, offset in before.items()],
        )
    cleaned = Cleaned()
    with _lock(database.folder, wait=False) as locked:
        for number in before if locked else ():
            cleaned += _remove_below_start(database, topic.partition(number))
    return cleaned


@contextmanager
def _lock(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Lock out other cleaners; yield False where another one has the lock."""
    with (folder / "cleaning.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _note_cleaned(database: Database, partition: int) -> None:
    with database.transaction() as sql:
        sql.execute(
            "UPDATE partitions SET cleaned_offset = end_offset, cleaned_records ="
            " (SELECT total(count) FROM batches WHERE id BETWEEN ? AND ?) WHERE id = ?",
            (*id_range(partition), partition),
        )


def _retain(database: Database, topic: StoredTopic, partition: int, now: int) -> Cleaned:
    with database.transaction() as sql:
        last_to_go = max(
            _last_expired(sql, topic, partition, now),
            _last_beyond(sql, partition, "bytes", topic.retention.bytes),
            _last_beyond(sql, partition, "count", topic.retention.records),
        )
        sql.execute(
            "UPDATE partitions SET start_offset = max(start_offset, ?) WHERE id = ?",
            (last_to_go + 1, partition),
        )
    return _remove_below_start(database, partition)


def _last_expired(sql: sqlite3.Connection, topic: StoredTopic, partition: int, now: int) -> int:
    """Return the last offset that is too old, -1 for none."""
    if topic.retention.seconds is None:
        return -1
    low, high = id_range(partition)
    oldest = now - round(topic.retention.seconds * 1000)
    fresh = sql.execute(
        "SELECT id FROM batches WHERE id BETWEEN ? AND ? AND newest BETWEEN ? AND ?"
        " ORDER BY id LIMIT 1",
        (low, high, oldest, now),
    ).fetchone()
    row = sql.execute(
        "SELECT last FROM batches WHERE id BETWEEN ? AND ? AND newest < ? ORDER BY id DESC LIMIT 1",
        (low, high if fresh is None else fresh[0], oldest),
    ).fetchone()
    return -1 if row is None else int(row[0])


def _last_beyond(sql: sqlite3.Connection, partition: int, what: str, limit: int | None) -> int:
    """Return the last offset that is not among the newest ``limit``, -1 for none."""
    if limit is None:
        return -1
    newest_first = sql.execute(
        f"SELECT last, {what} FROM batches WHERE id BETWEEN ? AND ? ORDER BY id DESC",  # noqa: S608 - a column of ours
        id_range(partition),
    )
    for last, amount in newest_first:
        if limit <= 0:
            return int(last)
        limit -= amount
    return -1


def _remove_below_start(database: Database, partition: int) -> Cleaned:
    cleaned = Cleaned()
    while True:
        with database.transaction() as sql:
            rows = sql.execute(
                "SELECT batches.id, count, bytes FROM batches JOIN partitions"
                " ON partitions.id = ? AND last < start_offset"
                " WHERE batches.id BETWEEN ? AND ? ORDER BY batches.id LIMIT ?",
                (partition, *id_range(partition), _REMOVED_AT_ONCE),
            ).fetchall()
            sql.executemany("DELETE FROM batches WHERE id = ?", ((row[0],) for row in rows))
        if not rows:
            return cleaned
        cleaned += Cleaned(sum(row[1] for row in rows), sum(row[2] for row in rows))
