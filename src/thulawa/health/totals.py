"""What one partition has come to: the totals of its cells and how far it is counted.

The totals are a function of the partition's messages before `Totals.position`, whoever counted
them. That is what makes writing them safe: of two instances that count one partition, the one that
is further may always overwrite the other.
"""

import heapq
from collections.abc import Iterable

from thulawa.core.types import TopicPartition
from thulawa.health.columns import Added, Since
from thulawa.health.model import Cell, Count

__all__ = ["Totals"]


class Totals:
    """The live cells of one partition."""

    def __init__(self, place: TopicPartition, expire: int) -> None:
        self._place = place
        self._expire = expire
        self._windows: dict[int, dict[str, tuple[int, int]]] = {}
        self._order: list[int] = []
        self._newest: int | None = None
        self.position = 0

    @property
    def since(self) -> Since:
        """Where to go on."""
        return Since(self.position, self._newest)

    def restore(self, count: Count) -> None:
        """Take what was read from the topic: of two totals of a cell, that with the higher offset.

        A tombstone removes the cell: its window has expired, and will not come back.
        """
        _, _, window, status = count.cell
        if count.value is None:
            self._windows.get(window, {}).pop(status, None)
            return
        _, offset = self._windows.get(window, {}).get(status, (0, -1))
        if count.offset >= offset:
            self._put(window, status, count.value, count.offset)

    def add(self, added: Iterable[Added], *, position: int) -> list[Count]:
        """Add what was counted since; give the totals that changed, then what has expired.

        A cell may be in both: its last total, for those who keep it, and then its end.
        ``position`` is how far the partition was read; there may have been nothing to count.
        """
        changed = []
        for window, status, more, offset in added:
            value, _ = self._windows.get(window, {}).get(status, (0, 0))
            self._put(window, status, value + more, offset)
            changed.append(self._count(window, status))
        self.position = max(self.position, position)
        return changed + self._expired()

    def counts(self) -> list[Count]:
        """Give all live totals, by window."""
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
