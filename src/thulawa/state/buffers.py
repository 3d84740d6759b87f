"""The time-ordered buffer: at most one entry per key, oldest first.

Suppression and stream joins hold updates and unmatched records in it. An entry stays at the time
of its key's first put until it is removed; a later put replaces the value, not the time. Keys are
identities, or tuples with one in them; callers make them by ``keys``.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Any

from thulawa.state.backing import Backing, sort_key
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys

__all__ = ["TimeOrderedBuffer"]


class TimeOrderedBuffer:
    """Hold one value per key, ordered by time, then key.

    >>> buffer = TimeOrderedBuffer("late", {})
    >>> buffer.put(5, "b", "x")
    >>> buffer.put(3, "a", "y")
    >>> buffer.put(9, "b", "z")
    >>> [buffer.pop_first(), buffer.pop_first(), buffer.earliest()]
    [('a', 'y'), ('b', 'z'), None]
    """

    __slots__ = ("_backing", "_order", "keys", "name", "values")

    def __init__(
        self,
        name: str,
        backing: Backing,
        *,
        keys: Keys = PLAIN_KEYS,
        values: ColumnCodec = PLAIN_DATA,
    ) -> None:
        self.name = name
        self.keys = keys
        self.values = values
        self._backing = backing
        order = ((time, sort_key(key), key) for key, (time, _) in backing.items())
        self._order: list[tuple[int, Any, Any]] = sorted(order, key=_time_and_key)

    def put(self, time: int, key: Hashable, value: Any) -> None:
        """Set the value of a key; a key that is in the buffer keeps its time."""
        self.values.check(value)
        held = self._backing.get(key)
        if held is None:
            self._backing[key] = (time, value)
            insort(self._order, (time, sort_key(key), key), key=_time_and_key)
        else:
            self._backing[key] = (held[0], value)

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        held = self._backing.get(key)
        return None if held is None else held[1]

    def earliest(self) -> int | None:
        """Return the time of the first entry, or None."""
        return self._order[0][0] if self._order else None

    def pop_first(self) -> tuple[Any, Any]:
        """Remove the first entry and return its key and value."""
        _, _, key = self._order.pop(0)
        return key, self._backing.pop(key, None)[1]

    def remove(self, key: Hashable) -> None:
        """Remove the entry of a key, if there is one."""
        held = self._backing.pop(key, None)
        if held is not None:
            del self._order[bisect_left(self._order, (held[0], sort_key(key)), key=_time_and_key)]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Return an iterator over times and keys, first to last."""
        return iter([(time, key) for time, _, key in self._order])

    def __len__(self) -> int:
        return len(self._order)


def _time_and_key(entry: tuple[int, Any, Any]) -> tuple[int, Any]:
    return entry[0], entry[1]
