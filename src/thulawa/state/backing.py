"""What a store stands on.

A *backing* maps identities of keys (`thulawa.state.keys`) to plain data, no more: `dict` is one,
and is what tests and the test driver use. Inside Spark it is a `thulawa.state.tracked.Tracked`,
which remembers what the running batch has changed. Order is not its business: stores that need
order keep a sorted index over the backing's keys, built when they are opened.

Values must be plain data and must not be changed in place: what is put is what is kept.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

__all__ = ["Backing", "sort_key"]


class Backing(Protocol):
    """The part of a mapping that stores use; a dict has it all."""

    def get(self, key: Any, /) -> Any:
        """Give the value of a key, or None."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...

    def pop(self, key: Any, default: None, /) -> Any:
        """Remove a key and give its value, or None."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Go through all entries, in any order."""

    def keys(self) -> Iterable[Any]:
        """Go through all keys, in any order."""

    def __len__(self) -> int: ...


def sort_key(key: Hashable) -> tuple[str, Any]:
    """Order keys of any types: within a type naturally, numbers before text.

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
