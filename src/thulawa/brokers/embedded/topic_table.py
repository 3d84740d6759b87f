"""Topics as rows: create, find, describe and delete them.

A topic never changes: number of partitions, retention and compaction are fixed. Ids are never used
again, so a client that holds the ids of a deleted topic writes nowhere and reads nothing, even
when there is a new topic of the same name.
"""

import sqlite3
from dataclasses import astuple, dataclass

from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.schema import OFFSET_MASK, PARTITION_BITS
from thulawa.brokers.embedded.topic_options import PartitionDescription, Retention, TopicDescription
from thulawa.core.names import check_name
from thulawa.errors import ConfigurationError, TopicDiffers, UnknownTopic

MOST_PARTITIONS = 10_000
_SWEPT_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's settings, and the ids of its partitions in order."""

    id: int
    name: str
    compact: bool
    retention: Retention
    partitions: tuple[int, ...]

    def partition(self, number: int) -> int:
        """Return the id of a partition."""
        if not 0 <= number < len(self.partitions):
            message = f"the partitions are 0 to {len(self.partitions) - 1}"
            raise UnknownTopic(message, topic=self.name, partition=number)
        return self.partitions[number]


def id_range(partition: int) -> tuple[int, int]:
    """Return the lowest and the highest id that a batch of this partition can have."""
    low = partition << PARTITION_BITS
    return low, low + OFFSET_MASK


def create(
    database: Database, name: str, partitions: int, retention: Retention, *, compact: bool
) -> None:
    """Create a topic; do nothing if it exists with these settings."""
    check_name(name, "topic")
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(f"partitions={partitions}: use 1 to {MOST_PARTITIONS:,}")
    with database.transaction() as sql:
        topic = _select(sql, name)
        if topic is None:
            _insert(sql, name, partitions, retention, compact=compact)
            return
        settings = len(topic.partitions), topic.retention, topic.compact
        if settings != (partitions, retention, compact):
            raise TopicDiffers("it exists with other settings", topic=name)


def _insert(
    sql: sqlite3.Connection, name: str, partitions: int, retention: Retention, *, compact: bool
) -> None:
    topic = sql.execute(
        "INSERT INTO topics (name, compact, seconds, bytes, records, tombstones)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (name, compact, *astuple(retention)),
    ).lastrowid
    sql.executemany(
        "INSERT INTO partitions (topic, number) VALUES (?, ?)",
        ((topic, number) for number in range(partitions)),
    )


def find(sql: sqlite3.Connection, name: str) -> StoredTopic:
    """Return a topic; raise `UnknownTopic`, which names existing topics, if there is none."""
    topic = _select(sql, check_name(name, "topic"))
    if topic is None:
        shown = ", ".join(names(sql)[:10])
        raise UnknownTopic(f"there is no such topic, there are: {shown or 'none'}", topic=name)
    return topic


def _select(sql: sqlite3.Connection, name: str) -> StoredTopic | None:
    row = sql.execute(
        "SELECT id, compact, seconds, bytes, records, tombstones FROM topics WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        return None
    identity, compact, seconds, size, records, tombstones = row
    retention = Retention(seconds=seconds, bytes=size, records=records, tombstones=tombstones)
    partitions = sql.execute(
        "SELECT id FROM partitions WHERE topic = ? ORDER BY number", (identity,)
    )
    ids = tuple(partition for (partition,) in partitions)
    return StoredTopic(identity, name, bool(compact), retention, ids)


def names(sql: sqlite3.Connection) -> list[str]:
    """Return the names of the topics, sorted."""
    return [name for (name,) in sql.execute("SELECT name FROM topics ORDER BY name")]


def describe(sql: sqlite3.Connection, name: str) -> TopicDescription:
    """Return the settings of a topic, and the offsets and sizes of its partitions."""
    topic = find(sql, name)
    rows = sql.execute(
        "SELECT number, start_offset, end_offset, total(count), total(bytes) FROM partitions"
        " LEFT JOIN batches ON batches.id BETWEEN partitions.id << ? AND (partitions.id << ?) + ?"
        " WHERE topic = ? GROUP BY number ORDER BY number",
        (PARTITION_BITS, PARTITION_BITS, OFFSET_MASK, topic.id),
    )
    partitions = tuple(
        PartitionDescription(number, start, end, int(records), int(size))
        for number, start, end, records, size in rows
    )
    return TopicDescription(name, topic.id, topic.retention, topic.compact, partitions)


def delete(database: Database, name: str) -> None:
    """Delete a topic with everything in it."""
    with database.transaction() as sql:
        topic = find(sql, name)
        # its batches are deleted afterwards, in small steps that a crash can interrupt
        sql.execute("INSERT INTO doomed SELECT id FROM partitions WHERE topic = ?", (topic.id,))
        for table in ("partitions", "commits"):
            sql.execute(f"DELETE FROM {table} WHERE topic = ?", (topic.id,))  # noqa: S608 - of ours
        sql.execute("DELETE FROM topics WHERE id = ?", (topic.id,))
    sweep(database)


def sweep(database: Database) -> None:
    """Delete the batches of deleted topics, also those that a killed process left."""
    more = True
    while more:
        with database.transaction() as sql:
            more = _sweep_some(sql)
    database.give_back_space()


def _sweep_some(sql: sqlite3.Connection) -> bool:
    row = sql.execute("SELECT partition FROM doomed LIMIT 1").fetchone()
    if row is None:
        return False
    removed = sql.execute(
        "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE id BETWEEN ? AND ? LIMIT ?)",
        (*id_range(row[0]), _SWEPT_AT_ONCE),
    ).rowcount
    if removed < _SWEPT_AT_ONCE:
        sql.execute("DELETE FROM compactions WHERE partition = ?", row)
        sql.execute("DELETE FROM doomed WHERE partition = ?", row)
    return True
