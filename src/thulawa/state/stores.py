"""Stores by key: key-value, versioned, and the time-ordered buffer."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from thulawa.state.backing import Backing, getter, setters, sort_key
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys

NEVER = -(2**63)  # before every time
_time = itemgetter(0)
_time_and_key = itemgetter(0, 1)


class StateStore:
    """The base of all stores.

    ``keys`` gives key identities, ``values`` checks what is put; both may raise
    `SerializationError`. ``size`` is that of windows.
    """

    __slots__ = (
        "_backing", "_get", "_identity", "_size", "_text", "keys", "name", "retention", "values",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        backing: Backing,
        *,
        size: int = 0,
        retention: int = 0,
        keys: Keys = PLAIN_KEYS,
        values: ColumnCodec = PLAIN_DATA,
    ) -> None:
        self.name = name
        self.retention = retention
        self.keys = keys
        self.values = values
        self._size = size
        self._backing = backing
        self._get = getter(backing)
        self._identity = keys.identity
        self._text = keys.text
        self._index()

    def _index(self) -> None:
        """Build what the store holds besides the entries of its backing."""

    def __len__(self) -> int:
        return len(self._backing)


class KeyValueStore(StateStore):
    """Store the latest value of each key and its timestamp; a value of None removes the key.

    >>> store = KeyValueStore("counts", {})
    >>> _ = store.put("b", 2)
    >>> _ = store.put("a", 1, timestamp=7)
    >>> store.get("a"), store.entry("a"), store.get("c")
    (1, (1, 7), None)
    >>> list(store.all())
    [('a', 1), ('b', 2)]
    """

    __slots__ = ("_sorted",)

    def _index(self) -> None:
        self._sorted: list[tuple[Any, Any, Any]] | None = None

    def by_identity(
        self,
    ) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
        """Return three functions that read and replace the entry of an identity.

        The first returns (value, timestamp) or None. To replace an entry, call the second with
        the entry that was read, then the third with the new one. Values are not checked.
        """
        return (self._get, *setters(self._backing))

    def prefetcher(self) -> Callable[[Sequence[Any]], None] | None:
        """Return a function that loads the entries of some keys with one read.

        None: all entries are in memory. Keys that are not their own identities are not loaded.
        """
        load = getattr(self._backing, "prefetch", None)
        if load is None:
            return None
        exact = self.keys.exact

        def prefetch(keys: Sequence[Any]) -> None:
            if exact.issuperset(map(type, keys)):
                load(keys)

        return prefetch

    def entry(self, key: Any) -> tuple[Any, int] | None:
        """Return (value, timestamp) of a key, or None."""
        plain = type(key) is self._text and key.isascii()  # `identity` without its call
        found: tuple[Any, int] | None = self._get(key if plain else self._identity(key))
        return found

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None."""
        entry = self._get(self._identity(key))
        return None if entry is None else entry[0]

    def put(self, key: Any, value: Any, timestamp: int = 0) -> bool:
        """Set the value of a key; return True: unlike in a versioned store it is the latest."""
        if value is None:
            self.delete(key)
            return True
        self.values.check(value)
        self._backing[self._identity(key)] = (value, timestamp)
        return True

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value of a key that has none; return the value it had."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def delete(self, key: Any) -> Any:
        """Remove a key; return the value it had, or None."""
        self._sorted = None
        entry = self._backing.pop(self._identity(key), None)
        return None if entry is None else entry[0]

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over keys and values in key order, not over keys added meanwhile."""
        return self.range(None, None)

    def range(self, first: Any, last: Any) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values from ``first`` to ``last``, both included; None: no bound."""
        low = None if first is None else sort_key(first)
        high = None if last is None else sort_key(last)
        for order, key, identity in self._in_order():
            if (low is None or order >= low) and (high is None or order <= high):
                entry = self._get(identity)
                if entry is not None:
                    yield key, entry[0]

    def _in_order(self) -> list[tuple[Any, Any, Any]]:
        """Return sort key, key and identity of all keys, sorted."""
        # `delete` resets the list, so it is still valid if the number of keys is the same
        if self._sorted is None or len(self._sorted) != len(self._backing):
            pairs = ((self.keys.key(one), one) for one in self._backing.keys())  # noqa: SIM118
            ordered = ((sort_key(key), key, identity) for key, identity in pairs)
            self._sorted = sorted(ordered, key=itemgetter(0))
        return self._sorted


class VersionedStore(StateStore):
    """Store the versions of each key by timestamp; None is the version "no value".

    Versions older than the newest time put here minus ``retention`` stay only if they are needed
    to answer for times within it.

    >>> store = VersionedStore("prices", {}, retention=100)
    >>> store.put("a", "cheap", 10), store.put("a", "dear", 20), store.put("a", "fair", 15)
    (True, True, False)
    >>> store.entry("a"), store.as_of("a", 17), store.as_of("a", 5)
    (('dear', 20), ('fair', 15), None)
    """

    __slots__ = ("_newest",)

    def _index(self) -> None:
        times = (versions[-1][0] for _, versions in self._backing.items())
        self._newest = max(times, default=NEVER)

    def entry(self, key: Any) -> tuple[Any, int] | None:
        """Return the latest (value, timestamp), or None."""
        versions = self._get(self._identity(key))
        return None if versions is None else _entry(versions[-1])

    def get(self, key: Any) -> Any:
        """Return the latest value, or None."""
        entry = self.entry(key)
        return None if entry is None else entry[0]

    def as_of(self, key: Any, timestamp: int) -> tuple[Any, int] | None:
        """Return the (value, timestamp) that was valid at a time, or None.

        For a time before the retention, only a version that is still the latest is found.
        """
        versions = self._get(self._identity(key))
        if versions is None:
            return None
        if timestamp < self._newest - self.retention:
            return _entry(versions[-1]) if versions[-1][0] <= timestamp else None
        index = bisect_right(versions, timestamp, key=_time)
        return _entry(versions[index - 1]) if index else None

    def put(self, key: Any, value: Any, timestamp: int) -> bool | None:
        """Add a version; return whether it is the latest, or None if it is too late."""
        identity = self._identity(key)
        self.values.check(value)
        if timestamp < self._newest - self.retention:
            return None
        self._newest = max(self._newest, timestamp)
        versions = self._get(identity) or ()
        index = bisect_right(versions, timestamp, key=_time)
        same = index > 0 and versions[index - 1][0] == timestamp
        now = (*versions[: index - same], (timestamp, value), *versions[index:])
        first_needed = bisect_right(now, self._newest - self.retention, key=_time) - 1
        self._backing[identity] = now[max(first_needed, 0) :]
        return index == len(versions)

    def delete(self, key: Any, timestamp: int) -> bool | None:
        """Add the version "no value"."""
        return self.put(key, None, timestamp)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys that have a value now, with it, in key order."""
        for key in sorted(map(self.keys.key, self._backing.keys()), key=sort_key):
            value = self.get(key)
            if value is not None:
                yield key, value


def _entry(version: tuple[int, Any]) -> tuple[Any, int] | None:
    timestamp, value = version
    return None if value is None else (value, timestamp)


class TimeOrderedBuffer(StateStore):
    """Hold one value per key, ordered by time, then key.

    Suppression and stream joins hold updates and unmatched records in it. An entry stays at the
    time of its key's first put until it is removed; a later put replaces the value, not the time.
    Keys are identities, or tuples with one in them; callers create them by ``keys``.

    >>> buffer = TimeOrderedBuffer("late", {})
    >>> buffer.put(5, "b", "x")
    >>> buffer.put(3, "a", "y")
    >>> buffer.put(9, "b", "z")
    >>> [buffer.pop_first(), buffer.pop_first(), buffer.earliest()]
    [('a', 'y'), ('b', 'z'), None]
    """

    __slots__ = ("_order",)

    def _index(self) -> None:
        order = ((time, sort_key(key), key) for key, (time, _) in self._backing.items())
        self._order: list[tuple[int, Any, Any]] = sorted(order, key=_time_and_key)

    def put(self, time: int, key: Hashable, value: Any) -> None:
        """Set the value of a key; a key that is in the buffer keeps its time."""
        self.values.check(value)
        held = self._get(key)
        if held is None:
            insort(self._order, (time, sort_key(key), key), key=_time_and_key)
        self._backing[key] = (time if held is None else held[0], value)

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        held = self._get(key)
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
