"""The bookkeeping of the order oracle: lines of records, and the first record of each.

A *line* is a set of records among which order matters: the records of one key, all unkeyed ones, or
the whole partition. A line may be serial (one call at a time, in offset order) and ordered (outputs
in offset order); a line that is neither only remembers the events of its key.

`Pending` returns the first record of a line, by a heap with lazy removal: O(log n) per event, so
that the oracle can observe runs of millions of records.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Line", "Lines", "Order", "Pending", "TrackedRecord", "Unkeyed"]

Order = Literal["key", "partition", "none", "emit"]
Unkeyed = Literal["ordered", "parallel"]

_EVENTS_SHOWN = 12


class Pending:
    """A set of offsets with access to the lowest one.

    >>> pending = Pending([5, 3])
    >>> pending.discard(3)
    >>> pending.first()
    5
    """

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._members: set[int] = set()
        self._heap: list[int] = []
        for offset in offsets:
            self.add(offset)

    def add(self, offset: int) -> None:
        """Add an offset, if it is not in the set."""
        if offset not in self._members:
            self._members.add(offset)
            heapq.heappush(self._heap, offset)

    def discard(self, offset: int) -> None:
        """Remove an offset, if it is in the set."""
        self._members.discard(offset)
        # Here and not in first(): a record that is retried for ever would accumulate copies.
        while self._heap and self._heap[0] not in self._members:
            heapq.heappop(self._heap)

    def first(self) -> int | None:
        """Return the lowest offset, or None when there is none."""
        return self._heap[0] if self._heap else None


@dataclass(slots=True, eq=False)
class Line:
    """Records among which order matters, and their last events."""

    name: str
    serial: bool
    ordered: bool
    to_start: Pending = field(default_factory=Pending)
    to_leave: Pending = field(default_factory=Pending)
    running: set[int] = field(default_factory=set)
    last_finished: int = -1
    events: deque[str] = field(default_factory=lambda: deque(maxlen=_EVENTS_SHOWN))

    def describe(self) -> str:
        """Return the last events, oldest first."""
        return "\n".join(f"  {event}" for event in self.events)


@dataclass(slots=True, eq=False)
class TrackedRecord:
    """The state of one record. ``left`` is how it left, if it has.

    ``settled``: its result is final, even if a call is still running.
    """

    offset: int
    key: Hashable
    line: Line
    running: bool = False
    finished: bool = False
    settled: bool = False
    left: str | None = None


class Lines:
    """All lines of a run, created for each new key; the contract assigns keys to lines.

    >>> lines = Lines("key", "parallel")
    >>> lines.of("a").serial, lines.of(None).serial
    (True, False)
    """

    def __init__(self, order: Order, unkeyed: Unkeyed) -> None:
        self._order = order
        self._unkeyed = unkeyed
        self._lines: dict[Hashable, Line] = {}

    def of(self, key: Hashable) -> Line:
        """Return the line of the records of a key."""
        if self._order == "partition":
            key = None
        if key not in self._lines:
            self._lines[key] = self._make(key)
        return self._lines[key]

    def _make(self, key: Hashable) -> Line:
        if self._order == "partition":
            return Line("the partition", serial=True, ordered=True)
        name = "the unkeyed records" if key is None else f"key {key!r}"
        free = self._order == "none" or (key is None and self._unkeyed == "parallel")
        return Line(name, serial=self._order == "key" and not free, ordered=not free)
