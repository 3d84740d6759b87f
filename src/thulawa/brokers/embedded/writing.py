"""Appending: pack first, then one transaction for everything.

All records of an append, whichever topics they go to, and the number of their batch are written
in one transaction. So a batch is in the log whole or not at all, and when a writer that does not
know whether it got through sends the batch again, its number says that it did: the batch is
skipped, for all topics alike. That holds even when the second attempt made other records or
routed them elsewhere (a lookup that timed out and went to the dead letters the first time): the
first attempt that got through stands. A batch with a lower number than the last one is refused
(`thulawa.core.markers`).

Offsets are given out inside the transaction, from the partition's row, so they are dense and in
the order of commits whoever writes. The lock is held for the inserts alone: partitions are chosen
and batches packed before it is taken.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from thulawa.brokers.embedded.batches import unpack
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.packing import PackedBatch, Partitioner, described, packed
from thulawa.brokers.embedded.schema import PARTITION_BITS
from thulawa.brokers.embedded.topic_options import Appended, Marker
from thulawa.brokers.embedded.topic_table import StoredTopic, find
from thulawa.core.markers import LastBatch, is_written
from thulawa.core.types import Offsets, ProducerRecord
from thulawa.errors import (
    Fenced,
    UnknownTopic,
)

__all__ = [
    "AppendResult",
    "append",
    "append_packed",
    "begin",
    "forget",
    "insert_batch",
    "last_batches",
]


_Work: TypeAlias = tuple[StoredTopic, int, list[PackedBatch]]  # what goes to a partition
# Epochs are rows beside the markers, under a name that no writer can have: no new table, so that
# older versions still read the log.
_EPOCH = "#epoch"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What was done, and which partitions have grown enough to be worth cleaning."""

    appended: Appended
    to_clean: tuple[str, ...] = ()


def append(
    database: Database,
    records: Mapping[str, Iterable[ProducerRecord]],
    *,
    partitioner: Partitioner,
    now: int,
    marker: Marker | None = None,
    batch: LastBatch,
    epoch: int | None = None,
) -> AppendResult:
    """Write records to topics, all or none; skip them if the marker has seen the batch."""
    topics, work = _packed(database, records, partitioner, now)
    return _write(database, topics, work, marker, batch, epoch)


def commit_stream(
    database: Database,
    records: Mapping[str, Iterable[ProducerRecord]],
    commits: tuple[str, Offsets],
    *,
    partitioner: Partitioner,
    now: int,
    writer: tuple[Marker, int] | None,
) -> AppendResult:
    """Write records and the offsets of a group, all or none; raise if the writer is fenced."""
    topics, work = _packed(database, records, partitioner, now)
    group, offsets = commits
    with database.transaction() as sql:
        if writer is not None:
            _check_epoch(sql, *writer)
        inserted, to_clean = _insert_all(sql, topics, work)
        sql.executemany(
            "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)",
            (
                (find(sql, topic).id, group, partition, offset)
                for topic, positions in offsets.items()
                for partition, offset in positions.items()
            ),
        )
    return AppendResult(Appended(offsets=inserted), to_clean)


def _packed(
    database: Database,
    records: Mapping[str, Iterable[ProducerRecord]],
    partitioner: Partitioner,
    now: int,
) -> tuple[list[StoredTopic], list[_Work]]:
    with database.snapshot() as sql:
        topics = [find(sql, name) for name in records]
    work = [
        (topic, number, batches)
        for topic in topics
        for number, batches in packed(records[topic.name], topic, partitioner, now).items()
    ]
    partitioner.next_batch()
    return topics, work


def append_packed(
    database: Database,
    batches: Iterable[tuple[str, int | None, bytes]],
    *,
    partitioner: Partitioner,
    now: int,
    marker: Marker | None,
    batch: LastBatch,
) -> AppendResult:
    """Write batches that are packed already: those whose partition is known as they are."""
    topics: dict[str, StoredTopic] = {}
    work: dict[tuple[str, int], list[PackedBatch]] = defaultdict(list)
    for name, chosen, body in batches:
        if name not in topics:
            with database.snapshot() as sql:
                topics[name] = find(sql, name)
        topic = topics[name]
        number = 0 if chosen is None and len(topic.partitions) == 1 else chosen
        if number is not None and not topic.compact:
            work[name, number].append(described(body))
            continue
        records = [
            ProducerRecord(key, value, headers, timestamp, number)
            for _, timestamp, key, value, headers in unpack(body, 0).rows()
        ]
        for place, parts in packed(records, topic, partitioner, now).items():
            work[name, place] += parts
    partitioner.next_batch()
    works = [(topics[name], number, parts) for (name, number), parts in work.items()]
    return _write(database, list(topics.values()), works, marker, batch)


def _write(
    database: Database,
    topics: list[StoredTopic],
    work: list[_Work],
    marker: Marker | None,
    batch: LastBatch,
    epoch: int | None = None,
) -> AppendResult:
    with database.transaction() as sql:
        if marker is not None and epoch is not None:
            _check_epoch(sql, marker, epoch)
        if marker is not None and not _advance(sql, marker, batch):
            return AppendResult(Appended(skipped=True))
        offsets, to_clean = _insert_all(sql, topics, work)
    return AppendResult(Appended(offsets=offsets), to_clean)


def _insert_all(
    sql: sqlite3.Connection, topics: list[StoredTopic], work: list[_Work]
) -> tuple[dict[tuple[str, int], range], tuple[str, ...]]:
    """Insert batches; return their offsets, and the topics that the caller is to clean."""
    offsets = {
        (topic.name, number): _insert(sql, topic, number, batches)
        for topic, number, batches in work
    }
    return offsets, tuple(topic.name for topic in topics if _claim_cleaning(sql, topic))


def last_batches(sql: sqlite3.Connection, writer: str) -> dict[int, LastBatch]:
    """Return the last batch of each task of a writer, of those that have written any."""
    rows = sql.execute("SELECT task, batch, layout FROM markers WHERE writer = ?", (writer,))
    return {task: LastBatch(batch, layout) for task, batch, layout in rows}


def forget(database: Database, marker: tuple[str, int]) -> None:
    """Remove a marker."""
    writer, task = marker
    with database.transaction() as sql:
        sql.execute(
            "DELETE FROM markers WHERE writer IN (?, ?) AND task = ?",
            (writer, writer + _EPOCH, task),
        )


def begin(database: Database, marker: Marker) -> int:
    """Return an epoch that is higher than those of all transactions of a marker so far."""
    writer, task = marker
    with database.transaction() as sql:
        (epoch,) = sql.execute(
            "INSERT INTO markers (writer, task, batch) VALUES (?, ?, 1)"
            " ON CONFLICT (writer, task) DO UPDATE SET batch = batch + 1 RETURNING batch",
            (writer + _EPOCH, task),
        ).fetchone()
    return int(epoch)


def _check_epoch(sql: sqlite3.Connection, marker: Marker, epoch: int) -> None:
    writer, task = marker
    found = sql.execute(
        "SELECT batch FROM markers WHERE writer = ? AND task = ?", (writer + _EPOCH, task)
    ).fetchone()
    if found != (epoch,):
        raise Fenced(f"task {task} of {writer} has begun a later transaction")


def _advance(sql: sqlite3.Connection, marker: Marker, batch: LastBatch) -> bool:
    """Move a marker on to a batch; return False when it is there already."""
    found = sql.execute(
        "SELECT batch, layout FROM markers WHERE writer = ? AND task = ?", marker
    ).fetchone()
    last = None if found is None else LastBatch(*found)
    writer, task = marker
    if is_written(batch.number, last, writer=writer, task=task, layout=batch.layout):
        return False
    sql.execute(
        "INSERT OR REPLACE INTO markers (writer, task, batch, layout) VALUES (?, ?, ?, ?)",
        (writer, task, batch.number, batch.layout),
    )
    return True


def _insert(
    sql: sqlite3.Connection, topic: StoredTopic, number: int, batches: list[PackedBatch]
) -> range:
    partition = topic.partition(number)
    row = sql.execute("SELECT end_offset FROM partitions WHERE id = ?", (partition,)).fetchone()
    if row is None:
        raise UnknownTopic("the topic has just been deleted", topic=topic.name)
    end = start = row[0]
    for batch in batches:
        insert_batch(sql, partition, batch, first=end, last=end + batch.count - 1)
        end += batch.count
    sql.execute("UPDATE partitions SET end_offset = ? WHERE id = ?", (end, partition))
    return range(start, end)


def insert_batch(
    sql: sqlite3.Connection, partition: int, batch: PackedBatch, *, first: int, last: int
) -> None:
    """Put a batch in its place: its first record has offset ``first``."""
    identity = partition << PARTITION_BITS | first
    sql.execute(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
        (identity, last, batch.count, batch.newest, len(batch.body), batch.body),
    )


# A topic is cleaned again when it has grown by as much as the last cleaning left, so that the
# cost of cleaning stays in proportion to the cost of writing.
_CLEAN_AT_LEAST = 10_000


def _claim_cleaning(sql: sqlite3.Connection, topic: StoredTopic) -> bool:
    """Tell whether the topic is due; whoever is told so is the only one who is."""
    if not (topic.compact or topic.retention.limits):
        return False
    return bool(
        sql.execute(
            "UPDATE partitions SET cleaned_offset = end_offset WHERE topic = ?"
            " AND end_offset - cleaned_offset >= max(?, cleaned_records)",
            (topic.id, _CLEAN_AT_LEAST),
        ).rowcount
    )
