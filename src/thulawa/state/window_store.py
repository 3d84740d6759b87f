"""Window and join stores: values by key and window start, or by key and time."""

from collections.abc import Iterator
from typing import Any

from thulawa.core.records import Window, Windowed
from thulawa.state.backing import Backing
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys
from thulawa.state.retained_store import NEVER, RetainedStore

__all__ = ["JoinStore", "WindowStore"]


class WindowStore(RetainedStore):
    """Store one value and its timestamp per key and window start.

    >>> store = WindowStore("per-minute", {}, size=60, retention=120)
    >>> store.put("a", 1, start=0, timestamp=7)
    >>> store.put("a", 2, start=60, timestamp=61)
    >>> store.fetch("a", 0), [window.start for window, _ in store.range("a", 0, 100)]
    ((1, 7), [0, 60])
    >>> store.put("a", 3, start=120, timestamp=120)
    >>> print(store.fetch("a", 0))
    None
    """

    __slots__ = ("_size",)

    def __init__(
        self,
        name: str,
        backing: Backing,
        *,
        size: int,
        retention: int,
        keys: Keys = PLAIN_KEYS,
        values: ColumnCodec = PLAIN_DATA,
    ) -> None:
        super().__init__(name, backing, retention=retention, keys=keys, values=values)
        self._size = size

    def fetch(self, key: Any, start: int) -> Any:
        """Return (value, timestamp) of a window, or None."""
        plain = type(key) is self._text and key.isascii()  # `identity` without its call
        return self._backing.get((key if plain else self._identity(key), start))

    def put(self, key: Any, value: Any, start: int, timestamp: int = 0) -> None:
        """Set the value of a window; None removes it, and an expired window is ignored."""
        plain = type(key) is self._text and key.isascii()
        identity = key if plain else self._identity(key)
        if type(value) is not int:
            self.values.check(value)
        if not self.observe(start):
            return
        entry_key = (identity, start)
        if value is None:
            self._backing.pop(entry_key, None)
            self._timeline.remove(identity, start)
        else:
            if self._backing.get(entry_key) is None:
                self._timeline.add(identity, start)
            self._backing[entry_key] = (value, timestamp)

    def range(self, key: Any, first: int, last: int) -> list[tuple[Window, tuple[Any, int]]]:
        """Return the windows of a key that start from ``first`` to ``last``, with their entries."""
        get, identity = self._backing.get, self._identity(key)
        size = self._size
        return [
            (Window(start, start + size), get((identity, start)))
            for start in self._timeline.times(identity, first, last)
        ]

    def starting(self, first: int, last: int) -> Iterator[tuple[Windowed[Any], tuple[Any, int]]]:
        """Yield all windows that start from ``first`` to ``last``, by start, then key."""
        for start, identity in list(self._timeline.between(first, last)):
            entry = self._backing.get((identity, start))
            yield Windowed(self.keys.key(identity), Window(start, start + self._size)), entry

    def all(self) -> Iterator[tuple[Windowed[Any], Any]]:
        """Yield all windows and their values."""
        for windowed, entry in self.starting(NEVER, 2**63):
            yield windowed, entry[0]


class JoinStore(RetainedStore):
    """Store every record of one side of a stream-stream join, several per key and time.

    >>> store = JoinStore("left", {}, retention=10)
    >>> store.put("a", "x", 5)
    >>> store.put("a", "y", 5)
    >>> list(store.fetch("a", 0, 9))
    [(5, 'x'), (5, 'y')]
    """

    __slots__ = ()

    def put(self, key: Any, value: Any, timestamp: int) -> None:
        """Add a record, unless it is expired."""
        identity = self._identity(key)
        self.values.check(value)
        if self.observe(timestamp):
            entry = (identity, timestamp)
            held = self._backing.get(entry)
            if held is None:
                self._timeline.add(identity, timestamp)
            self._backing[entry] = (value,) if held is None else (*held, value)

    def fetch(self, key: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield the records of a key from ``first`` to ``last``, by time, then arrival."""
        identity = self._identity(key)
        for time in self._timeline.times(identity, first, last):
            for value in self._backing.get((identity, time)):
                yield time, value
