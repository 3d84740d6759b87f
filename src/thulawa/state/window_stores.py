"""Stores by key and time, with a retention: window, join and session stores.

An entry expires when its time is not above the newest time minus the retention: it is removed, and
cannot be put again. The newest time is that of the entries put here, not the task's stream time.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import Any

from thulawa.core.records import Window, Windowed
from thulawa.state.backing import sort_key
from thulawa.state.stores import NEVER, StateStore

_FOREVER = 2**63


class Timeline:
    """Find the times of a key in a range, and the keys of a range of times.

    It holds the sorted times of each key (bisect over a list: they are few) and the keys of each
    time. It is not persisted, but rebuilt from the backing.

    >>> line = Timeline()
    >>> for key, time in [("a", 5), ("b", 1), ("a", 1)]:
    ...     line.add(key, time)
    >>> line.times("a", 0, 9), list(line.between(0, 9))
    ([1, 5], [(1, 'a'), (1, 'b'), (5, 'a')])
    """

    __slots__ = ("_keys", "_times", "_times_of")

    def __init__(self) -> None:
        self._times_of: dict[Hashable, list[int]] = {}
        self._keys: dict[int, set[Any]] = {}  # by time
        self._times: list[int] = []

    def add(self, key: Hashable, time: int) -> None:
        """Add a key at a time."""
        keys = self._keys.get(time)
        if keys is None:
            keys = self._keys[time] = set()
            insort(self._times, time)
        if key not in keys:
            keys.add(key)
            insort(self._times_of.setdefault(key, []), time)

    def remove(self, key: Hashable, time: int) -> None:
        """Remove a key at a time, if it is there."""
        keys = self._keys.get(time)
        if keys is None or key not in keys:
            return
        keys.remove(key)
        if not keys:
            del self._keys[time]
            del self._times[bisect_left(self._times, time)]
        times = self._times_of[key]
        del times[bisect_left(times, time)]
        if not times:
            del self._times_of[key]

    def times(self, key: Hashable, first: int, last: int) -> list[int]:
        """Return the times of a key from ``first`` to ``last``, both included."""
        times = self._times_of.get(key)
        if times is None:
            return []
        return times[bisect_left(times, first) : bisect_right(times, last)]

    def between(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield times and keys from ``first`` to ``last``, ordered by time, then key."""
        for time in self._times[bisect_left(self._times, first) : bisect_right(self._times, last)]:
            for key in sorted(self._keys[time], key=sort_key):
                yield time, key

    def earliest(self) -> int | None:
        """Return the first time, or None."""
        return self._times[0] if self._times else None


class RetainedStore(StateStore):
    """Hold entries by (key identity, time), and expire them."""

    __slots__ = ("_newest", "_timeline")

    def _index(self) -> None:
        self._timeline = Timeline()
        self._newest = NEVER
        for identity, time in list(self._backing.keys()):
            self._timeline.add(identity, time)
            self._newest = max(self._newest, time)

    def observe(self, time: int) -> bool:
        """Advance the newest time and expire entries; return whether ``time`` is not expired."""
        if time > self._newest:
            self._newest = time
            self.expire(time - self.retention)
        return time > self._newest - self.retention

    def expire(self, horizon: int) -> None:
        """Remove the entries at or before a time."""
        earliest = self._timeline.earliest()
        if earliest is None or earliest > horizon:
            return
        for time, identity in list(self._timeline.between(NEVER, horizon)):
            self._remove(identity, time)

    def _remove(self, identity: Hashable, time: int) -> None:
        self._backing.pop((identity, time), None)
        self._timeline.remove(identity, time)


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

    __slots__ = ()

    def fetch(self, key: Any, start: int) -> Any:
        """Return (value, timestamp) of a window, or None."""
        plain = type(key) is self._text and key.isascii()  # `identity` without its call
        return self._get((key if plain else self._identity(key), start))

    def put(self, key: Any, value: Any, start: int, timestamp: int = 0) -> None:
        """Set the value of a window; None removes it, and an expired window is ignored."""
        plain = type(key) is self._text and key.isascii()
        identity = key if plain else self._identity(key)
        if type(value) is not int:
            self.values.check(value)
        if not self.observe(start):
            return
        if value is None:
            self._remove(identity, start)
            return
        entry_key = (identity, start)
        if self._get(entry_key) is None:
            self._timeline.add(identity, start)
        self._backing[entry_key] = (value, timestamp)

    def range(self, key: Any, first: int, last: int) -> list[tuple[Window, tuple[Any, int]]]:
        """Return the windows of a key that start from ``first`` to ``last``, with their entries."""
        get, identity, size = self._get, self._identity(key), self._size
        return [
            (Window(start, start + size), get((identity, start)))
            for start in self._timeline.times(identity, first, last)
        ]

    def starting(self, first: int, last: int) -> Iterator[tuple[Windowed[Any], tuple[Any, int]]]:
        """Yield all windows that start from ``first`` to ``last``, by start, then key."""
        for start, identity in list(self._timeline.between(first, last)):
            entry = self._get((identity, start))
            yield Windowed(self.keys.key(identity), Window(start, start + self._size)), entry

    def all(self) -> Iterator[tuple[Windowed[Any], Any]]:
        """Yield all windows and their values."""
        for windowed, entry in self.starting(NEVER, _FOREVER):
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
            held = self._get(entry)
            if held is None:
                self._timeline.add(identity, timestamp)
            self._backing[entry] = (value,) if held is None else (*held, value)

    def fetch(self, key: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield the records of a key from ``first`` to ``last``, by time, then arrival."""
        identity = self._identity(key)
        for time in self._timeline.times(identity, first, last):
            for value in self._get((identity, time)):
                yield time, value


class SessionStore(RetainedStore):
    """Store one value per key and session [start, end].

    Sessions of one key never overlap, so a session is identified by its end, which also decides
    its expiry.

    >>> store = SessionStore("visits", {}, retention=100)
    >>> store.put("a", Window(5, 9), 2)
    >>> store.overlapping("a", 8, 20), store.fetch("a", Window(5, 9))
    ([(Window(start=5, end=9), 2)], 2)
    """

    __slots__ = ()

    def put(self, key: Any, session: Window, value: Any) -> None:
        """Set the value of a session; None removes it, and an expired session is ignored."""
        start, end = session
        identity = self._identity(key)
        self.values.check(value)
        alive = self.observe(end)
        if value is None:
            self._remove(identity, end)
        elif alive:
            self._backing[identity, end] = (start, value)
            self._timeline.add(identity, end)

    def remove(self, key: Any, session: Window) -> None:
        """Remove a session, if it exists."""
        self._remove(self._identity(key), session.end)

    def fetch(self, key: Any, session: Window) -> Any:
        """Return the value of exactly this session, or None."""
        entry = self._get((self._identity(key), session.end))
        return entry[1] if entry is not None and entry[0] == session.start else None

    def overlapping(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> list[tuple[Window, Any]]:
        """Return the sessions of a key that end and start within these bounds, ordered by end."""
        found = []
        identity = self._identity(key)
        for end in self._timeline.times(identity, earliest_end, _FOREVER):
            start, value = self._get((identity, end))
            if start <= latest_start:
                found.append((Window(start, end), value))
        return found

    def ending(self, first: int, last: int) -> Iterator[tuple[Windowed[Any], Any]]:
        """Yield all sessions that end from ``first`` to ``last``, by end, then key."""
        for end, identity in list(self._timeline.between(first, last)):
            start, value = self._get((identity, end))
            yield Windowed(self.keys.key(identity), Window(start, end)), value

    def all(self) -> Iterator[tuple[Windowed[Any], Any]]:
        """Return an iterator over all sessions and their values."""
        return self.ending(NEVER, _FOREVER)
