"""Blocks: many records of a partition in columns, to save calls per record.

Reading, folding and writing records one by one costs more in calls than in work. A block passes a
chain of nodes one node at a time. This is done only where the result is the same: a single path
from source to sink, without a node that depends on time or on the store of another node.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

from thulawa.core.records import Headers

# offset, timestamp, key, value, headers
RawRecord: TypeAlias = tuple[int, int, Any, Any, Headers]

# Values of other types may be changed in place by the user's code, so they must be forwarded
# before the next call of that code.
IMMUTABLE_TYPES = frozenset((type(None), bool, int, float, str, bytes))


class Block(NamedTuple):
    """Records in offset order, a sequence for each field of a `RawRecord`."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[Any]
    values: Sequence[Any]
    headers: Sequence[Headers]

    def records(self) -> Iterator[RawRecord]:
        """Return an iterator over the records."""
        return zip(*self, strict=True)

    def cut(self, start: int, count: int) -> "Block":
        """Return ``count`` records from a position on."""
        columns: Any = (column[start : start + count] for column in self)
        return Block(*columns)

    def select(self, wanted: Sequence[Any]) -> "Block":
        """Return the records whose item in ``wanted`` is true; missing items count as false."""
        return Block(*(list(compress(column, wanted)) for column in self))


ForwardBlock: TypeAlias = Callable[[Block], None]
