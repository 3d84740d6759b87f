"""Blocks: many records of a partition in columns, for what is quicker done to all of them.

To read, fold and write a record each by itself costs more in calls than in work. A block goes
through a chain of nodes one node at a time, so only a chain may take it where nobody can tell:
one way from the source to the sink, and no node on it that looks at time or at another's store.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

from thulawa.core.records import Headers

__all__ = ["IMMUTABLE_TYPES", "Block", "ForwardBlock", "RawRecord"]

# offset, timestamp, key, value, headers
RawRecord: TypeAlias = tuple[int, int, Any, Any, Headers]

# A value of another type may be changed by the user's code once it is back there: it must have
# left before that.
IMMUTABLE_TYPES = frozenset((type(None), bool, int, float, str, bytes))


class Block(NamedTuple):
    """Records in offset order, a sequence for each part of a `RawRecord`."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[Any]
    values: Sequence[Any]
    headers: Sequence[Headers]

    def records(self) -> Iterator[RawRecord]:
        """Return them one by one."""
        return zip(*self, strict=True)

    def select(self, wanted: Sequence[Any]) -> "Block":
        """Return the records for which there is something true; none beyond what there is."""
        return Block(*(list(compress(column, wanted)) for column in self))


ForwardBlock: TypeAlias = Callable[[Block], None]
