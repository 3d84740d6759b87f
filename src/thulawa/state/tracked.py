"""The entries of a store in memory: what they were before a batch, and what is not read yet."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from thulawa.state.backing import Backing

__all__ = ["PartlyLoadedEntries", "TrackedEntries", "UnloadedEntries", "setters"]


class UnloadedEntries(Protocol):
    """What of a store is kept and not in memory."""

    def read(self, key: Any, /) -> bool:
        """Read all that is kept with a key; tell whether there was anything to read."""

    def read_all(self) -> None:
        """Read the rest."""


class TrackedEntries(dict[Any, Any]):
    """A dict that remembers what its keys held before they were changed.

    ``before`` is the same dict for ever: `setters` hands its methods out.
    """

    __slots__ = ("before", "unread")

    unread: UnloadedEntries

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any, /, set_item: Any = dict.__setitem__) -> None:
        if key not in self.before:
            self.before[key] = self.get(key)
        set_item(self, key, value)

    def pop(self, key: Any, default: Any = None, /) -> Any:
        """Remove a key and give its value."""
        if key not in self.before:
            self.before[key] = self.get(key)
        return super().pop(key, default)

    def undo(self) -> None:
        """Put back what the keys held before."""
        self.apply(self.before.items())
        self.before.clear()

    def apply(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Take entries that are true already; None removes."""
        for key, value in entries:
            if value is None:
                dict.pop(self, key, None)
            else:
                dict.__setitem__(self, key, value)


class PartlyLoadedEntries(TrackedEntries):
    """The same while some of it is not read: what is asked for is read first.

    It becomes a `TrackedEntries` when all is read, so nothing here may ask for its class.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None, /) -> Any:
        """Return the value of a key."""
        found = dict.get(self, key)
        if found is None and self.unread.read(key):
            found = dict.get(self, key)
        return default if found is None else found

    def __getitem__(self, key: Any, /) -> Any:
        self.unread.read(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key: Any, /) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        self.unread.read_all()
        return dict.__len__(self)

    def __iter__(self) -> Iterator[Any]:
        self.unread.read_all()
        return dict.__iter__(self)

    def keys(self) -> Any:
        """Return all keys."""
        self.unread.read_all()
        return dict.keys(self)

    def items(self) -> Any:
        """Return all entries."""
        self.unread.read_all()
        return dict.items(self)


def setters(backing: Backing) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], None]]:
    """Return what sets the entry of a key for one who has just asked for it, in two calls into C.

    The first takes the entry that the key had, the second the one it is to have.
    """
    if isinstance(backing, TrackedEntries):
        return backing.before.setdefault, dict.__setitem__.__get__(backing)
    return _ignore, backing.__setitem__


_nothing: dict[Any, Any] = {}
_ignore = _nothing.get  # what a key had is of no interest: nothing happens, and that in C
