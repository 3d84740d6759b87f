"""Lines of offsets: what finishes in any order is put back into the order it was expected in.

Two uses with different needs. `InOrder` is a reorder buffer, of a partition or of one key: a
value whose turn has not come waits in a dictionary, and what waits counts as held. `Frontier`
says how far everything is finished; it remembers the offsets that are *not*, for these are
bounded, while what has finished behind one slow record is not. Both are amortised O(1).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

from thulawa.engine.model import Record

__all__ = ["Frontier", "InOrder"]


class InOrder:
    """A line of offsets, each finished once with a value; values leave in line order."""

    __slots__ = ("_expected", "_finished")

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self._finished: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def buffered(self) -> int:
        """How many have finished and wait for one before them."""
        return len(self._finished)

    def expect(self, offset: int) -> None:
        """Add an offset at the end of the line."""
        self._expected.append(offset)

    def finish(self, offset: int, value: Any) -> list[Any]:
        """Finish an offset; give the values that may leave now, in order."""
        expected = self._expected
        finished = self._finished
        if expected[0] != offset:
            finished[offset] = value
            return []
        expected.popleft()
        released = [value]
        while finished and expected[0] in finished:
            released.append(finished.pop(expected.popleft()))
        return released

    def withheld(self) -> Iterator[Any]:
        """Give the values that have finished but may not leave yet."""
        return iter(self._finished.values())


class Frontier:
    """The records that were expected and are not finished, in the order of their offsets."""

    __slots__ = ("_last", "_newest", "_unfinished")

    def __init__(self) -> None:
        self._unfinished: dict[int, Record] = {}
        self._last = -1
        self._newest = -1

    def __len__(self) -> int:
        return len(self._unfinished)

    def __iter__(self) -> Iterator[int]:
        return iter(self._unfinished)

    @property
    def frontier(self) -> int:
        """The offset below which everything is finished."""
        return next(iter(self._unfinished), self._last + 1)

    @property
    def lag(self) -> int:
        """How far the newest finished offset is ahead of the frontier."""
        return max(0, self._newest - self.frontier)

    def expect(self, records: Sequence[Record]) -> None:
        """Add records at the end; their offsets must rise, from zero on."""
        offsets = [record.offset for record in records]
        if not all(map(lt, [self._last, *offsets], offsets)):
            last, offset = next(pair for pair in pairwise([self._last, *offsets]) if not lt(*pair))
            raise ValueError(f"offset {offset} arrived after {last}: offsets must rise")
        self._unfinished.update(zip(offsets, records, strict=True))
        self._last = offsets[-1] if offsets else self._last

    def records(self) -> list[Record]:
        """List what is not finished."""
        return list(self._unfinished.values())

    def finish(self, offsets: Sequence[int]) -> None:
        """Finish offsets, in any order, each once."""
        unfinished = self._unfinished
        for offset in offsets:
            del unfinished[offset]
        self._newest = max(self._newest, max(offsets, default=-1))
