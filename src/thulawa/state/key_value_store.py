"""The key-value store: the latest value of each key and its timestamp."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from thulawa.state.backing import Backing, sort_key
from thulawa.state.codec import PLAIN_DATA, ColumnCodec
from thulawa.state.key_identity import PLAIN_KEYS, Keys
from thulawa.state.tracked import setters

__all__ = ["KeyValueStore"]


class KeyValueStore:
    """Store one value per key; a value of None removes the key.

    ``keys`` gives key identities, ``values`` checks what is put; both may raise
    `SerializationError`.

    >>> store = KeyValueStore("counts", {})
    >>> _ = store.put("b", 2)
    >>> _ = store.put("a", 1, timestamp=7)
    >>> store.get("a"), store.entry("a"), store.get("c")
    (1, (1, 7), None)
    >>> list(store.all())
    [('a', 1), ('b', 2)]
    """

    __slots__ = ("_backing", "_get", "_identity", "_sorted", "_text", "keys", "name", "values")

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
        self._get = backing.get
        self._identity = keys.identity
        self._text = keys.text
        self._sorted: list[tuple[Any, Any, Any]] | None = None

    def by_identity(
        self,
    ) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
        """Return three functions that read and replace the entry of an identity.

        The first returns (value, timestamp) or None. To replace an entry, call the second with
        the entry that was read, then the third with the new one. Values are not checked.
        """
        return (self._backing.get, *setters(self._backing))

    def entry(self, key: Any) -> tuple[Any, int] | None:
        """Return (value, timestamp) of a key, or None."""
        plain = type(key) is self._text and key.isascii()  # `identity` without its call
        found: tuple[Any, int] | None = self._get(key if plain else self._identity(key))
        return found

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None."""
        entry = self._backing.get(self._identity(key))
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
                entry = self._backing.get(identity)
                if entry is not None:
                    yield key, entry[0]

    def __len__(self) -> int:
        return len(self._backing)

    def _in_order(self) -> list[tuple[Any, Any, Any]]:
        """Return sort key, key and identity of all keys, sorted."""
        # `delete` resets the list, so it is still valid if the number of keys is the same
        if self._sorted is None or len(self._sorted) != len(self._backing):
            pairs = ((self.keys.key(one), one) for one in self._backing.keys())  # noqa: SIM118
            ordered = ((sort_key(key), key, identity) for key, identity in pairs)
            self._sorted = sorted(ordered, key=itemgetter(0))
        return self._sorted
