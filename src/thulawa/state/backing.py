"""The mapping that a store keeps its entries in.

A *backing* is a mapping from key identities (`thulawa.state.key_identity`) to plain data. Tests
and the test driver use a `dict`; on Spark it is a `thulawa.state.tracked.TrackedEntries`, which
also remembers the values that the running batch has replaced. A backing has no order: stores that
need one keep a sorted index of the backing's keys, built when the store is opened.

Values are plain data and must not be changed in place.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

__all__ = ["Backing", "sort_key"]


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
