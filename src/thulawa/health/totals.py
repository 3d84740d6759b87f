"""The totals of one partition, and the offset up to which it is counted.

The totals are a function of the partition's messages before `Totals.position`, whichever instance
counted them. So of two instances that count the same partition, the one with the higher position
may always overwrite the other.
"""

import heapq
from collections.abc import Iterable

from thulawa.core.types import TopicPartition
from thulawa.health.counter import Added, Since
from thulawa.health.counts import Cell, Count

__all__ = ["Totals"]


class Totals:
    """The cells of one partition whose windows have not expired."""

    def __init__(self, place: TopicPartition, expire: int) -> None:
        self._place = place
        self._expire = expire
        self._windows: dict[int, dict[str, tuple[int, int]]] = {}
        self._order: list[int] = []
        self._newest: int | None = None
        self.position = 0

    @property
    def since(self) -> Since:
        """Return where counting continues."""
        return Since(self.position, self._newest)

    def restore(self, count: Count) -> None:
        """Apply a record of the topic: the total with the higher offset replaces the other.

        A tombstone removes the cell: its window has expired for good.
        """
        _, _, window, status = count.cell
        if count.value is None:
            self._windows.get(window, {}).pop(status, None)
            return
        _, offset = self._windows.get(window, {}).get(status, (0, -1))
        if count.offset >= offset:
            self._put(window, status, count.value, count.offset)

    def add(self, added: Iterable[Added], *, position: int) -> list[Count]:
        """Add new counts; return the totals that changed, then tombstones of expired windows.

        A cell may be in both: its last total, for sinks, and then its tombstone. ``position`` is
        the offset up to which the partition was read, which may have had nothing to count.
        """
        changed = []
        for window, status, more, offset in added:
            value, _ = self._windows.get(window, {}).get(status, (0, 0))
            self._put(window, status, value + more, offset)
            changed.append(self._count(window, status))
        self.position = max(self.position, position)
        return changed + self._expired()

    def counts(self) -> list[Count]:
        """Return all totals, sorted by window."""
        return [
            self._count(window, status)
            for window in sorted(self._windows)
            for status in sorted(self._windows[window])
        ]

    def _put(self, window: int, status: str, value: int, offset: int) -> None:
        if window not in self._windows:
            self._windows[window] = {}
            heapq.heappush(self._order, window)
        self._windows[window][status] = value, offset
        self.position = max(self.position, offset)
        if self._newest is None or window > self._newest:
            self._newest = window

    def _count(self, window: int, status: str) -> Count:
        value, offset = self._windows[window][status]
        return Count(Cell(*self._place, window, status), value, offset)

    def _expired(self) -> list[Count]:
        gone: list[Count] = []
        while self._order and self._newest is not None:
            window = self._order[0]
            if self._newest - window <= self._expire:
                break
            heapq.heappop(self._order)
            gone += [
                Count(Cell(*self._place, window, status), None, self.position)
                for status in self._windows.pop(window)
            ]
        return gone
