"""Offsets that finish in any order: reorder buffers, and the frontier.

`ReorderBuffer`, of a partition or of one key, returns values in the order in which their offsets
were expected; values that wait count as held. `Frontier` knows up to which offset everything is
finished. It stores the offsets that are *not* finished, because their number is bounded, while
the number of finished offsets behind one slow record is not. Both are amortised O(1).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import lt
from typing import Any

from thulawa.engine.work_items import WorkItem


class ReorderBuffer:
    """Offsets in the order expected, each finished once with a value that is returned in order."""

    __slots__ = ("_expected", "_finished")

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self._finished: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def buffered(self) -> int:
        """How many values wait for an offset before theirs."""
        return len(self._finished)

    def expect(self, offset: int) -> None:
        """Append an offset to the order."""
        self._expected.append(offset)

    def finish(self, offset: int, value: Any) -> list[Any]:
        """Finish an offset; return the values whose turn has come, in order."""
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

    def values(self) -> Iterable[Any]:
        """Return the values that wait."""
        return self._finished.values()


class Frontier:
    """The records that arrived and are not finished, by offset."""

    __slots__ = ("_last", "_newest", "_unfinished")

    def __init__(self) -> None:
        self._unfinished: dict[int, WorkItem] = {}
        self._last = -1  # the last offset that arrived
        self._newest = -1  # the highest offset that is finished

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
        """The distance from the frontier to the highest finished offset."""
        return max(0, self._newest - self.frontier)

    def expect(self, records: Sequence[WorkItem]) -> None:
        """Add records that arrived; raise ValueError unless their offsets rise, from 0 on."""
        offsets = [record.offset for record in records]
        if not all(map(lt, [self._last, *offsets], offsets)):
            last, offset = next(pair for pair in pairwise([self._last, *offsets]) if not lt(*pair))
            raise ValueError(f"offset {offset} arrived after {last}: offsets must rise")
        self._unfinished.update(zip(offsets, records, strict=True))
        self._last = offsets[-1] if offsets else self._last

    def records(self) -> list[WorkItem]:
        """Return the records that are not finished."""
        return list(self._unfinished.values())

    def finish(self, offsets: Sequence[int]) -> None:
        """Finish offsets, in any order, each once."""
        unfinished = self._unfinished
        for offset in offsets:
            del unfinished[offset]
        self._newest = max(self._newest, max(offsets, default=-1))
