"""The versioned store: the value of a key as of a time.

Versions older than the newest time put here minus ``history`` stay only if they are needed to
answer for times within the history.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from thulawa.state.backing import Backing, sort_key
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys

__all__ = ["VersionedStore"]

_TIME = itemgetter(0)


class VersionedStore:
    """Store the versions of each key by timestamp; None is the version "no value".

    >>> store = VersionedStore("prices", {}, history=100)
    >>> store.put("a", "cheap", 10), store.put("a", "dear", 20), store.put("a", "fair", 15)
    (True, True, False)
    >>> store.entry("a"), store.as_of("a", 17), store.as_of("a", 5)
    (('dear', 20), ('fair', 15), None)
    """

    __slots__ = ("_backing", "_identity", "_newest", "history", "keys", "name", "values")

    def __init__(
        self,
        name: str,
        backing: Backing,
        *,
        history: int,
        keys: Keys = PLAIN_KEYS,
        values: ColumnCodec = PLAIN_DATA,
    ) -> None:
        self.name = name
        self.history = history
        self.keys = keys
        self._identity = keys.identity
        self.values = values
        self._backing = backing
        times = (versions[-1][0] for _, versions in backing.items())
        self._newest = max(times, default=-(2**63))

    def entry(self, key: Any) -> tuple[Any, int] | None:
        """Return the latest (value, timestamp), or None."""
        versions = self._backing.get(self._identity(key))
        return None if versions is None else _found(versions[-1])

    def get(self, key: Any) -> Any:
        """Return the latest value, or None."""
        entry = self.entry(key)
        return None if entry is None else entry[0]

    def as_of(self, key: Any, timestamp: int) -> tuple[Any, int] | None:
        """Return the (value, timestamp) that was valid at a time, or None.

        For a time before the history, only a version that is still the latest is found.
        """
        versions = self._backing.get(self._identity(key))
        if versions is None:
            return None
        if timestamp < self._newest - self.history:
            return _found(versions[-1]) if versions[-1][0] <= timestamp else None
        index = bisect_right(versions, timestamp, key=_TIME)
        return _found(versions[index - 1]) if index else None

    def put(self, key: Any, value: Any, timestamp: int) -> bool | None:
        """Add a version; return whether it is the latest, or None if it is too late."""
        identity = self._identity(key)
        self.values.check(value)
        if timestamp < self._newest - self.history:
            return None
        self._newest = max(self._newest, timestamp)
        versions = self._backing.get(identity) or ()
        index = bisect_right(versions, timestamp, key=_TIME)
        same = index > 0 and versions[index - 1][0] == timestamp
        before = versions[: index - same]
        self._backing[identity] = self._pruned((*before, (timestamp, value), *versions[index:]))
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

    def _pruned(self, versions: tuple[tuple[int, Any], ...]) -> tuple[tuple[int, Any], ...]:
        """Return the versions without those that were valid only before the history."""
        first = bisect_right(versions, self._newest - self.history, key=_TIME) - 1
        return versions[max(first, 0) :]

    def __len__(self) -> int:
        return len(self._backing)


def _found(version: tuple[int, Any]) -> tuple[Any, int] | None:
    timestamp, value = version
    return None if value is None else (value, timestamp)
