"""The key-value store: the latest value of each key and its timestamp."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from thulawa.state.backing import Backing, sort_key
from thulawa.state.tracked import setters

__all__ = ["KeyValueStore"]


class KeyValueStore:
    """Keep one value per key; a value of None removes it.

    >>> store = KeyValueStore("counts", {})
    >>> _ = store.put("b", 2)
    >>> _ = store.put("a", 1, timestamp=7)
    >>> store.get("a"), store.entry("a"), store.get("c")
    (1, (1, 7), None)
    >>> list(store.all())
    [('a', 1), ('b', 2)]
    """

    __slots__ = ("_backing", "_sorted", "entry", "name")

    def __init__(self, name: str, backing: Backing) -> None:
        self.name = name
        self._backing = backing
        # (value, timestamp) or None: bound once, because every aggregation asks it per record
        self.entry = backing.get
        self._sorted: list[Any] | None = None

    def setters(self) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
        """Give what sets the entry of a key for one who has just asked for it.

        The first takes the entry that the key had, the second the one it is to have. Not one
        without the other.
        """
        return setters(self._backing)

    def get(self, key: Hashable) -> Any:
        """Give the value of a key, or None."""
        entry = self._backing.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: Any, timestamp: int = 0) -> bool:
        """Set the value of a key; it is always the latest, which a versioned store's may not be."""
        if value is None:
            self.delete(key)
            return True
        self._backing[key] = (value, timestamp)
        return True

    def put_if_absent(self, key: Hashable, value: Any) -> Any:
        """Set the value of a key that has none; give the value it had."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def delete(self, key: Hashable) -> Any:
        """Remove a key; give the value it had, or None."""
        self._sorted = None
        entry = self._backing.pop(key, None)
        return None if entry is None else entry[0]

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Go through all keys and values in key order; changes meanwhile are not seen."""
        return self.range(None, None)

    def range(self, first: Hashable | None, last: Hashable | None) -> Iterator[tuple[Any, Any]]:
        """Go through the keys from ``first`` to ``last``, both included; None is no bound."""
        low = None if first is None else sort_key(first)
        high = None if last is None else sort_key(last)
        for key in self._keys():
            place = sort_key(key)
            if (low is None or place >= low) and (high is None or place <= high):
                value = self.get(key)
                if value is not None:
                    yield key, value

    def __len__(self) -> int:
        return len(self._backing)

    def _keys(self) -> list[Any]:
        # a key that goes takes it away, so it still holds if there are no more
        if self._sorted is None or len(self._sorted) != len(self._backing):
            self._sorted = sorted(self._backing.keys(), key=sort_key)
        return self._sorted
