"""The entries of a store in memory: what they were before a batch, and what is not read yet."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

__all__ = ["PartlyRead", "Tracked", "Unread"]


class Unread(Protocol):
    """What of a store is kept and not in memory."""

    def read(self, key: Any, /) -> bool:
        """Read all that is kept with a key; tell whether there was anything to read."""

    def read_all(self) -> None:
        """Read the rest."""


class Tracked(dict[Any, Any]):
    """A dict that remembers what its keys held before they were changed."""

    __slots__ = ("before", "unread")

    unread: Unread

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
        before, self.before = self.before, {}
        self.apply(before.items())

    def apply(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Take entries that are true already; None removes."""
        for key, value in entries:
            if value is None:
                dict.pop(self, key, None)
            else:
                dict.__setitem__(self, key, value)


class PartlyRead(Tracked):
    """The same while some of it is not read: what is asked for is read first.

    It becomes a `Tracked` when all is read, so nothing here may ask for its class.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None, /) -> Any:
        """Give the value of a key."""
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
        """Give all keys."""
        self.unread.read_all()
        return dict.keys(self)

    def items(self) -> Any:
        """Give all entries."""
        self.unread.read_all()
        return dict.items(self)
