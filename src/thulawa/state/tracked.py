"""Entries of a store in memory that remember replaced values and load missing ones on demand."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from thulawa.state.backing import Backing

__all__ = ["PartlyLoadedEntries", "TrackedEntries", "UnloadedEntries", "setters"]


class UnloadedEntries(Protocol):
    """Loads the entries of a store that are in the state backend and not in memory yet."""

    def load(self, key: Any, /) -> bool:
        """Load the entries of a key's shard; return whether anything was left to load."""

    def load_all(self) -> None:
        """Load all entries that are left."""


class TrackedEntries(dict[Any, Any]):
    """A dict that remembers the values its keys had before the running batch changed them.

    ``before`` maps each changed key to its old value, None if it had none. It is the same dict
    object for ever: `setters` returns its methods.
    """

    __slots__ = ("before", "unloaded")

    unloaded: UnloadedEntries

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


def setters(backing: Backing) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
    """Return two C functions that replace an entry which the caller has just read.

    Call the first with the key and its old entry, then the second with the key and the new one.
    """
    if isinstance(backing, TrackedEntries):
        return backing.before.setdefault, dict.__setitem__.__get__(backing)
    return _ignore, backing.__setitem__


_nothing: dict[Any, Any] = {}
_ignore = _nothing.get  # a no-op in C, for backings that do not track old entries
