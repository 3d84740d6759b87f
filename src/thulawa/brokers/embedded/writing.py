"""Append records: pack first, then one transaction for everything.

All records of an append, whichever topics they go to, and the number of their batch are written in
one transaction. So a batch is in the log whole or not at all, and when a writer that does not know
whether its batch was committed sends it again, the number says so: the batch is skipped, for all
topics alike. That holds even when the second attempt has other records or routes them elsewhere (a
lookup that timed out and went to the dead letters the first time): the first committed attempt
counts. A batch with a lower number than the last one is an error (`thulawa.core.markers`).

Offsets are assigned inside the transaction, from the partition's row, so they are dense and in the
order of commits whoever writes. The lock is held for the inserts alone: partitions are chosen and
batches packed before it is taken.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from thulawa.brokers.embedded.batches import PackedBatch, described, unpack
from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.packing import Partitioner, packed
from thulawa.brokers.embedded.schema import PARTITION_BITS
from thulawa.brokers.embedded.topic_options import Appended, Marker
from thulawa.brokers.embedded.topic_table import StoredTopic, find
from thulawa.core.markers import LastBatch, is_written
from thulawa.core.types import Offsets, ProducerRecord
from thulawa.errors import Fenced, UnknownTopic

Work: TypeAlias = list[tuple[StoredTopic, int, list[PackedBatch]]]  # batches by partition

# Epochs are rows beside the markers, under a name that no writer can have: no new table, so that
# older versions still read the log.
_EPOCH = "#epoch"
# A topic is cleaned again when it has grown by as much as the last cleaning left, so that the
# cost of cleaning stays in proportion to the cost of writing.
_CLEAN_AT_LEAST = 10_000


def pack_records(
    database: Database,
    records: Mapping[str, Iterable[ProducerRecord]],
    partitioner: Partitioner,
    now: int,
) -> Work:
    """Pack records by topic and partition."""
    with database.snapshot() as sql:
        topics = {name: find(sql, name) for name in records}
    return [
        (topic, number, batches)
        for name, topic in topics.items()
        for number, batches in packed(records[name], topic, partitioner, now).items()
    ]


def sort_packed(
    database: Database,
    batches: Iterable[tuple[str, int | None, bytes]],
    partitioner: Partitioner,
    now: int,
) -> Work:
    """Sort packed batches by topic and partition; those without a partition are packed again."""
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
        for partition, parts in packed(records, topic, partitioner, now).items():
            work[name, partition] += parts
    return [(topics[name], number, parts) for (name, number), parts in work.items()]


def write(
    database: Database,
    work: Work,
    marker: Marker | None,
    batch: LastBatch | None,
    epoch: int | None,
    commits: tuple[str, Offsets] | None = None,
) -> tuple[Appended, list[str]]:
    """Write batches, all or none, or skip them if the marker has this batch.

    With ``commits``, commit the offsets of a consumer group with them. Return the offsets of the
    records, and the topics that this writer alone is to clean.
    """
    with database.transaction() as sql:
        if marker is not None and epoch is not None:
            _check_epoch(sql, marker, epoch)
        if marker is not None and batch is not None and not _advance(sql, marker, batch):
            return Appended(skipped=True), []
        offsets = {
            (topic.name, number): _insert(sql, topic, number, batches)
            for topic, number, batches in work
        }
        if commits is not None:
            _commit_offsets(sql, *commits)
        topics = {topic.name: topic for topic, _, _ in work}
        due = [name for name, topic in topics.items() if _claim_cleaning(sql, topic)]
    return Appended(offsets=offsets), due


def _commit_offsets(sql: sqlite3.Connection, group: str, offsets: Offsets) -> None:
    sql.executemany(
        "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)",
        (
            (find(sql, topic).id, group, partition, offset)
            for topic, positions in offsets.items()
            for partition, offset in positions.items()
        ),
    )


def last_batches(sql: sqlite3.Connection, writer: str) -> dict[int, LastBatch]:
    """Return the last batch of each task of a writer, of those that have written any."""
    rows = sql.execute("SELECT task, batch, layout FROM markers WHERE writer = ?", (writer,))
    return {task: LastBatch(batch, layout) for task, batch, layout in rows}


def delete_marker(database: Database, marker: tuple[str, int]) -> None:
    """Delete a marker and its epoch."""
    writer, task = marker
    with database.transaction() as sql:
        sql.execute(
            "DELETE FROM markers WHERE writer IN (?, ?) AND task = ?",
            (writer, writer + _EPOCH, task),
        )


def next_epoch(database: Database, marker: Marker) -> int:
    """Return an epoch that is higher than those of all transactions of a marker so far."""
    with database.transaction() as sql:
        (epoch,) = sql.execute(
            "INSERT INTO markers (writer, task, batch) VALUES (?, ?, 1)"
            " ON CONFLICT (writer, task) DO UPDATE SET batch = batch + 1 RETURNING batch",
            (marker.writer + _EPOCH, marker.task),
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
    writer, task = marker
    found = sql.execute(
        "SELECT batch, layout FROM markers WHERE writer = ? AND task = ?", marker
    ).fetchone()
    last = None if found is None else LastBatch(*found)
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
    """Insert a batch whose first record has offset ``first``."""
    identity = partition << PARTITION_BITS | first
    sql.execute(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
        (identity, last, batch.count, batch.newest, len(batch.body), batch.body),
    )


def _claim_cleaning(sql: sqlite3.Connection, topic: StoredTopic) -> bool:
    """Return True to exactly one caller when cleaning is due."""
    if not (topic.compact or topic.retention.limits):
        return False
    updated = sql.execute(
        "UPDATE partitions SET cleaned_offset = end_offset WHERE topic = ?"
        " AND end_offset - cleaned_offset >= max(?, cleaned_records)",
        (topic.id, _CLEAN_AT_LEAST),
    )
    return updated.rowcount > 0
