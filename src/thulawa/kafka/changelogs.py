"""Changelogs: a compacted topic that holds the last value of each key, and its reading back.

A task's store is written to the partition of its own number. Within a batch only the last value
of a key is written; None says that the key is gone. Writing goes through the sink's transaction
(the records below are what it is handed), so a store and its outputs become visible together.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thulawa.kafka.connection import Connection
from thulawa.kafka.reading import read_to_end
from thulawa.kafka.routing import OutRecord
from thulawa.kafka.topics import Topics, TopicSpec

__all__ = ["Restored", "changelog_records", "checksum", "ensure_changelog", "restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What was read back: the records of the topic, the keys that are left, their checksum."""

    records: int
    entries: int
    checksum: str


def ensure_changelog(topics: Topics, topic: str, tasks: int) -> bool:
    """Make the changelog of a store unless it is there; True when this call made it."""
    return topics.ensure(topic, TopicSpec(partitions=tasks, cleanup="compact"))


def changelog_records(
    topic: str, task: int, changes: Iterable[tuple[bytes, bytes | None]], timestamp: int
) -> list[OutRecord]:
    """Give the records of a batch's changes: of each key the last value alone."""
    last = dict(changes)
    return [OutRecord(topic, key, value, task, timestamp, None) for key, value in last.items()]


def restore(
    connection: Connection,
    topic: str,
    task: int,
    put: Callable[[bytes, bytes | None], None],
    *,
    progress: Callable[[int], None] | None = None,
) -> Restored:
    """Read a task's changelog to its end, handing every change to ``put`` in order.

    ``progress`` is told how many records were read so far. The checksum is that of what is left,
    whatever compaction has removed; `checksum` gives the same for a store with these entries.
    """
    entries: dict[bytes, bytes] = {}
    records = 0
    for chunk in read_to_end(connection, topic, task):
        for message in chunk:
            key, value = _bytes(message.key()), message.value()
            put(key, None if value is None else _bytes(value))
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = _bytes(value)
        records += len(chunk)
        if progress is not None:
            progress(records)
    return Restored(records, len(entries), checksum(entries.items()))


def checksum(entries: Iterable[tuple[bytes, bytes]]) -> str:
    """Give one figure for a store's entries, in whatever order they come."""
    total = 0
    for key, value in entries:
        data = len(key).to_bytes(8, "big") + key + value
        total ^= int.from_bytes(hashlib.sha256(data).digest()[:16], "big")
    return f"{total:032x}"


def _bytes(data: str | bytes | None) -> bytes:
    assert isinstance(data, bytes), "a changelog's records have keys"
    return data
