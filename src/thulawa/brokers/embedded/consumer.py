"""A consumer: reads the partitions of one topic in turn and commits its positions.

A *group* is a name under which positions are committed, nothing more: the log has no coordinator,
so processes that share the work of a group are given their partitions, and two that read the same
partition both get all of it.

The position of a partition is the offset of the next record that `Consumer.poll` will return.
Where compaction has left nothing up to the end of the partition, it moves on to the end.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from thulawa.brokers.embedded.database import Database
from thulawa.brokers.embedded.fetching import bounds, fetch, records_of
from thulawa.brokers.embedded.topic_table import find
from thulawa.core.names import check_name
from thulawa.core.types import ConsumerRecord
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets

Start: TypeAlias = Literal["earliest", "latest"] | Mapping[int, int]

_MIN_PAUSE, _MAX_PAUSE = 0.001, 0.05  # seconds


@dataclass(frozen=True)
class Waiter:
    """Waits for commits of other connections, without polling tables.

    SQLite has a counter that changes with every commit of another connection (``PRAGMA
    data_version``): reading it costs some 5 µs and takes no lock. A waiting consumer reads it,
    sleeps for 1 ms, and doubles the sleep up to 50 ms while nothing happens. So a busy topic
    answers within about a millisecond, and an idle consumer wakes 20 times a second.
    """

    database: Database
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def deadline(self, timeout: float) -> float:
        """Return the time at which a wait of ``timeout`` seconds that begins now is over."""
        return self.clock() + timeout

    def wait(self, version: int, deadline: float) -> bool:
        """Wait for another version than this; return False when the deadline came first."""
        pause = _MIN_PAUSE
        while self.database.version() == version:
            left = deadline - self.clock()
            if left <= 0:
                return False
            self.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_PAUSE)
        return True


class Consumer:
    """Reads one topic. Created by `Log.consumer`; belongs to one thread."""

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        buckets: Buckets | None = None,
    ) -> None:
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise ConfigurationError(f"start={start!r}: use 'earliest', 'latest' or offsets")
        self._database = database
        self._group = None if group is None else check_name(group, "group")
        self._waiter = Waiter(database)
        self._buckets = buckets
        with database.snapshot() as sql:
            self._topic = find(sql, name)
        everything = range(len(self._topic.partitions))
        self._partitions = sorted(everything if partitions is None else set(partitions))
        self._positions = self._first_positions(start)
        self._fetched: dict[int, deque[ConsumerRecord]] = {p: deque() for p in self._partitions}
        # where to fetch next: ahead of the position while fetched records wait
        self._ahead = dict(self._positions)

    def poll(self, max_records: int = 500, timeout: float = 0.0) -> list[ConsumerRecord]:
        """Return the next records, in the order of each partition; wait for some if need be.

        An empty list means that none came within ``timeout`` seconds. Raise `OffsetOutOfRange` if
        retention removed records before they were read; `seek` then sets where to continue.
        """
        if max_records < 1:
            raise ConfigurationError("max_records must be at least 1")
        deadline = self._waiter.deadline(timeout)
        while True:
            version = self._database.version()
            records = self._next_records(max_records)
            if records or not self._waiter.wait(version, deadline):
                return records

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Commit the positions for the group: a consumer created later starts there."""
        if self._group is None:
            raise ConfigurationError("commit() needs a group: log.consumer(topic, group='name')")
        chosen = dict(self._positions if positions is None else positions)
        with self._database.transaction() as sql:
            for partition, offset in chosen.items():
                _check(offset, partition, bounds(sql, self._topic, partition)[1])
            sql.executemany(
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)",
                ((self._topic.id, self._group, *position) for position in chosen.items()),
            )

    def seek(self, partition: int, offset: int) -> None:
        """Continue reading a partition from this offset."""
        if partition not in self._positions:
            raise ConfigurationError(f"partition {partition} is not one of {self._partitions}")
        _check(offset, partition, offset)
        self._positions[partition] = self._ahead[partition] = offset
        self._fetched[partition].clear()

    def position(self, partition: int) -> int:
        """Return the offset of the partition's next record."""
        return self._positions[partition]

    def positions(self) -> dict[int, int]:
        """Return the position of each partition."""
        return dict(self._positions)

    def end_offsets(self) -> dict[int, int]:
        """Return, for each partition, the offset that its next new record will have."""
        with self._database.snapshot() as sql:
            return {number: bounds(sql, self._topic, number)[1] for number in self._partitions}

    def lag(self) -> dict[int, int]:
        """Return, for each partition, how far its position is from its end."""
        return {number: end - self._positions[number] for number, end in self.end_offsets().items()}

    def close(self) -> None:
        """Close the connection to the log. Nothing is committed."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_positions(self, start: Start) -> dict[int, int]:
        with self._database.snapshot() as sql:
            rows = sql.execute(
                "SELECT partition, next_offset FROM commits WHERE topic = ? AND consumer_group = ?",
                (self._topic.id, self._group),
            )
            positions: dict[int, int] = dict(rows.fetchall())
            for number in self._partitions:
                if number not in positions:
                    limits = bounds(sql, self._topic, number)
                    if isinstance(start, Mapping):
                        positions[number] = start.get(number, limits[0])
                    else:
                        positions[number] = limits[0 if start == "earliest" else 1]
        return {number: positions[number] for number in self._partitions}

    def _next_records(self, limit: int) -> list[ConsumerRecord]:
        """Return fetched records, one partition after the other; fetch where there are none."""
        records: list[ConsumerRecord] = []
        for partition in tuple(self._partitions):
            waiting = self._fetched[partition]
            if not waiting:
                self._fetch(partition)
            while waiting and len(records) < limit:
                records.append(waiting.popleft())
                self._positions[partition] = records[-1].offset + 1
            if not waiting:
                self._positions[partition] = self._ahead[partition]
            if len(records) == limit:
                # the other partitions are first next time, so that a long one starves none
                at = self._partitions.index(partition) + 1
                self._partitions = self._partitions[at:] + self._partitions[:at]
                break
        return records

    def _fetch(self, partition: int) -> None:
        fetched = fetch(self._database, self._topic, partition, self._ahead[partition])
        if self._buckets is not None:
            for chunk in fetched.chunks:
                self._buckets.check_headers(chunk.headers)
        self._ahead[partition] = fetched.next
        for chunk in fetched.chunks:
            self._fetched[partition].extend(records_of(chunk, self._topic.name, partition))


def _check(offset: int, partition: int, end: int) -> None:
    if not 0 <= offset <= end:
        raise ConfigurationError(f"offset {offset} of partition {partition} must be in [0, {end}]")
