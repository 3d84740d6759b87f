"""Times in order, and what happened at each: the index that window-like stores share.

It keeps the sorted times of each group (bisect over a list: groups are short) and the groups of
each time. It is not persisted, but rebuilt from the backing.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import Any

from thulawa.state.backing import sort_key

__all__ = ["Timeline"]


class Timeline:
    """Find the times of a group in a range, and the groups of a range of times.

    >>> line = Timeline()
    >>> for group, time in [("a", 5), ("b", 1), ("a", 1)]:
    ...     line.add(group, time)
    >>> line.times("a", 0, 9), list(line.between(0, 9))
    ([1, 5], [(1, 'a'), (1, 'b'), (5, 'a')])
    """

    __slots__ = ("_groups", "_members", "_times")

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[int]] = {}
        self._members: dict[int, set[Any]] = {}
        self._times: list[int] = []

    def add(self, group: Hashable, time: int) -> None:
        """Add an entry of a group at a time."""
        members = self._members.get(time)
        if members is None:
            members = self._members[time] = set()
            insort(self._times, time)
        if group not in members:
            members.add(group)
            insort(self._groups.setdefault(group, []), time)

    def remove(self, group: Hashable, time: int) -> None:
        """Remove the entry of a group at a time, if there is one."""
        members = self._members.get(time)
        if members is None or group not in members:
            return
        members.remove(group)
        if not members:
            del self._members[time]
            del self._times[bisect_left(self._times, time)]
        times = self._groups[group]
        del times[bisect_left(times, time)]
        if not times:
            del self._groups[group]

    def times(self, group: Hashable, first: int, last: int) -> list[int]:
        """Return the times of a group from ``first`` to ``last``, both included."""
        times = self._groups.get(group)
        if times is None:
            return []
        return times[bisect_left(times, first) : bisect_right(times, last)]

    def between(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield times and groups from ``first`` to ``last``, ordered by time, then group."""
        for time in self._times[bisect_left(self._times, first) : bisect_right(self._times, last)]:
            for group in sorted(self._members[time], key=sort_key):
                yield time, group

    def earliest(self) -> int | None:
        """Return the first time, or None."""
        return self._times[0] if self._times else None
