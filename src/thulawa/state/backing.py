"""The mapping that a store keeps its entries in.

A *backing* is a mapping from key identities (`thulawa.state.key_identity`) to plain data, which
must not be changed in place. Tests and the test driver use a `dict`; on Spark it is a
`TrackedEntries`, which remembers the values that the running batch has replaced, and loads missing
ones on demand; in continuous execution it reads them from the disk (`rocksdb.CachedEntries`). A
backing has no order: stores that need one keep a sorted index of its keys, built when the store is
opened.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol


class Backing(Protocol):
    """The methods of a mapping that stores use; a dict has them all."""

    def get(self, key: Any, /) -> Any:
        """Return the value of a key, or None."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...

    def pop(self, key: Any, default: None, /) -> Any:
        """Remove a key and return its value, or None."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all entries, in any order."""

    def keys(self) -> Iterable[Any]:
        """Return all keys, in any order."""

    def __len__(self) -> int: ...


def sort_key(key: Hashable) -> tuple[str, Any]:
    """Return a sort key for keys of any types: numbers before text, each in natural order.

    >>> sorted(["b", 10, 9, None, "a"], key=sort_key)
    [None, 9, 10, 'a', 'b']
    """
    if key is None:
        return ("", 0)
    if isinstance(key, int | float):
        return ("number", key)
    if isinstance(key, tuple):
        return ("tuple", tuple(sort_key(part) for part in key))
    if isinstance(key, str | bytes):
        return (f"text {type(key).__name__}", key)
    return (f"~{type(key).__qualname__}", repr(key))


class TrackedEntries(dict[Any, Any]):
    """A dict that remembers the values its keys had before the running batch changed them.

    ``before`` maps each changed key to its old value, None if it had none. It is the same dict
    object for ever: `setters` returns its methods. ``unloaded`` loads the entries that are not in
    memory yet (`paged.UnloadedShards`).
    """

    __slots__ = ("before", "unloaded")

    unloaded: Any

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any, /, set_item: Any = dict.__setitem__) -> None:
        if key not in self.before:
            self.before[key] = self.get(key)
        set_item(self, key, value)

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Remove a key and return its value."""
        if key not in self.before:
            self.before[key] = self.get(key)
        return super().pop(key, default)

    def undo(self) -> None:
        """Restore the values that the changed keys had before."""
        self.apply(self.before.items())
        self.before.clear()

    def apply(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Set committed entries without tracking them; a value of None removes the key."""
        for key, value in entries:
            if value is None:
                dict.pop(self, key, None)
            else:
                dict.__setitem__(self, key, value)


class PartlyLoadedEntries(TrackedEntries):
    """Tracked entries of which some are not in memory: each access loads what it needs first.

    An instance becomes a plain `TrackedEntries` (by its ``__class__``) once everything is loaded.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None, /) -> Any:
        """Return the value of a key."""
        found = dict.get(self, key)
        if found is None and self.unloaded.load(key):
            found = dict.get(self, key)
        return default if found is None else found

    def __getitem__(self, key: Any, /) -> Any:
        self.unloaded.load(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key: Any, /) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        self.unloaded.load_all()
        return dict.__len__(self)

    def __iter__(self) -> Iterator[Any]:
        self.unloaded.load_all()
        return dict.__iter__(self)

    def keys(self) -> Any:
        """Return all keys."""
        self.unloaded.load_all()
        return dict.keys(self)

    def items(self) -> Any:
        """Return all entries."""
        self.unloaded.load_all()
        return dict.items(self)


def getter(backing: Backing) -> Callable[[Any], Any]:
    """Return the function that reads an entry, or None: in C wherever the entry is in memory."""
    if hasattr(type(backing), "__missing__"):
        found: Callable[[Any], Any] = dict.__getitem__.__get__(backing)
        return found
    return backing.get


_ignore = dict[Any, Any]().get  # a no-op in C, for backings that do not track old entries


def setters(backing: Backing) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
    """Return two C functions that replace an entry which the caller has just read.

    Call the first with the key and its old entry, then the second with the key and the new one.
    """
    if isinstance(backing, TrackedEntries):
        return backing.before.setdefault, dict.__setitem__.__get__(backing)
    return _ignore, backing.__setitem__
