"""A consumer: reads the partitions of one topic in turn and remembers how far it got.

A *group* is a name under which positions are committed, nothing more: the log has no
coordinator, so processes that share the work of a group are given their partitions, and two
that read the same partition both get all of it.

The position of a partition is the offset of the next record that `Consumer.poll` will return.
Where compaction has left nothing up to the end of the partition, it moves on to the end.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Literal, Self, TypeAlias

from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.fetching import bounds, fetch, records_of
from thulawa.brokers.embedded.topic_table import StoredTopic, find
from thulawa.brokers.embedded.waiting import Waiter
from thulawa.core.names import check_name
from thulawa.core.types import ConsumerRecord
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets

Start: TypeAlias = Literal["earliest", "latest"] | Mapping[int, int]


class Consumer:
    """Reads one topic. Made by `Log.consumer`; belongs to one thread."""

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        waiter: Waiter | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise ConfigurationError(f"start={start!r}: use 'earliest', 'latest' or offsets")
        self._database = database
        self._group = None if group is None else check_name(group, "group")
        self._waiter = waiter or Waiter(database)
        self._buckets = buckets
        self._topic = self._find(name)
        everything = range(len(self._topic.partitions))
        self._partitions = sorted(everything if partitions is None else set(partitions))
        self._positions = self._first_positions(start)
        self._fetched: dict[int, deque[ConsumerRecord]] = {p: deque() for p in self._partitions}
        # where to fetch next: ahead of the position while fetched records wait
        self._ahead = dict(self._positions)

    def poll(self, max_records: int = 500, timeout: float = 0.0) -> list[ConsumerRecord]:
        """Give the next records, in the order of each partition; wait for some if need be.

        An empty list means that none came within ``timeout`` seconds. If retention removed
        records before they were read, `OffsetOutOfRange` says so; `seek` decides where to go on.
        """
        if max_records < 1:
            raise ConfigurationError("max_records must be at least 1")
        deadline = self._waiter.deadline(timeout)
        while True:
            version = self._database.version()
            records = self._take(max_records)
            if records or not self._waiter.wait(version, deadline):
                return records

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Remember the positions for the group: a consumer made later starts there."""
        if self._group is None:
            raise ConfigurationError("commit() needs a group: log.consumer(topic, group='name')")
        chosen = dict(self._positions if positions is None else positions)
        with self._database.transaction() as sql:
            for partition, offset in chosen.items():
                self._check(offset, partition, bounds(sql, self._topic, partition))
            sql.executemany(
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)",
                ((self._topic.id, self._group, *position) for position in chosen.items()),
            )

    def seek(self, partition: int, offset: int) -> None:
        """Go on reading a partition from this offset."""
        if partition not in self._positions:
            raise ConfigurationError(f"partition {partition} is not one of {self._partitions}")
        self._check(offset, partition, (0, offset))
        self._positions[partition] = self._ahead[partition] = offset
        self._fetched[partition].clear()

    def position(self, partition: int) -> int:
        """Give the offset of the partition's next record."""
        return self.positions()[partition]

    def positions(self) -> dict[int, int]:
        """Give the position of each partition."""
        return dict(self._positions)

    def end_offsets(self) -> dict[int, int]:
        """Give, for each partition, the offset that its next new record will have."""
        with self._database.snapshot() as sql:
            return {number: bounds(sql, self._topic, number)[1] for number in self._partitions}

    def lag(self) -> dict[int, int]:
        """Give, for each partition, how far its position is from its end."""
        return {number: end - self._positions[number] for number, end in self.end_offsets().items()}

    def close(self) -> None:
        """Let go of the log. Nothing is committed."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _find(self, name: str) -> StoredTopic:
        with self._database.snapshot() as sql:
            return find(sql, name)

    def _first_positions(self, start: Start) -> dict[int, int]:
        with self._database.snapshot() as sql:
            rows = sql.execute(
                "SELECT partition, next_offset FROM commits WHERE topic = ? AND consumer_group = ?",
                (self._topic.id, self._group),
            )
            committed = dict(rows.fetchall())
            first = _starts(start)
            return {
                number: committed[number]
                if number in committed
                else first(number, bounds(sql, self._topic, number))
                for number in self._partitions
            }

    def _take(self, most: int) -> list[ConsumerRecord]:
        """Take fetched records, one partition after the other, fetching where there are none."""
        taken: list[ConsumerRecord] = []
        for partition in tuple(self._partitions):
            waiting = self._fetched[partition]
            if not waiting:
                self._fetch(partition)
            while waiting and len(taken) < most:
                taken.append(waiting.popleft())
                self._positions[partition] = taken[-1].offset + 1
            if not waiting:
                self._positions[partition] = self._ahead[partition]
            if len(taken) == most:
                self._rotate_behind(partition)
                break
        return taken

    def _fetch(self, partition: int) -> None:
        fetched = fetch(self._database, self._topic, partition, self._ahead[partition])
        if self._buckets is not None:
            for chunk in fetched.chunks:
                self._buckets.check_headers(chunk.headers)
        self._ahead[partition] = fetched.next
        for chunk in fetched.chunks:
            self._fetched[partition].extend(records_of(chunk, self._topic.name, partition))

    def _rotate_behind(self, partition: int) -> None:
        """Let the other partitions go first next time, so that a long one starves nobody."""
        at = self._partitions.index(partition) + 1
        self._partitions = self._partitions[at:] + self._partitions[:at]

    def _check(self, offset: int, partition: int, between: tuple[int, int]) -> None:
        if not 0 <= offset <= between[1]:
            raise ConfigurationError(
                f"offset {offset} of partition {partition} must be in [0, {between[1]}]"
            )


def committed(sql: sqlite3.Connection, group: str) -> dict[str, dict[int, int]]:
    """Return the offsets that a group has committed, by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for topic, partition, offset in sql.execute(
        "SELECT name, partition, next_offset FROM commits JOIN topics ON topics.id = commits.topic"
        " WHERE consumer_group = ?",
        (group,),
    ):
        found.setdefault(topic, {})[partition] = offset
    return found


def forget_group(database: Database, group: str) -> None:
    """Delete the offsets that a group has committed."""
    with database.transaction() as sql:
        sql.execute("DELETE FROM commits WHERE consumer_group = ?", (group,))


def _starts(start: Start) -> Callable[[int, tuple[int, int]], int]:
    if isinstance(start, Mapping):
        return lambda number, between: start.get(number, between[0])
    side = 0 if start == "earliest" else 1
    return lambda _, between: between[side]
