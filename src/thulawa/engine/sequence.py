"""Put what finishes in any order back into the order in which it was expected.

One idea, used three times: the *frontier* of a partition (how far everything is finished), the
reorder buffer of ``emit="partition"``, and one such buffer per key for ``order="emit"``.
Finishing is amortised O(1): an offset that is not at the front waits in a dictionary, and
leaves it when all before it have finished.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["InOrder"]


class InOrder:
    """A line of offsets, each finished once with a value; values leave in line order."""

    __slots__ = ("_expected", "_finished", "_last")

    def __init__(self) -> None:
        self._expected: deque[int] = deque()
        self._finished: dict[int, Any] = {}
        self._last = -1

    def __len__(self) -> int:
        return len(self._expected)

    @property
    def buffered(self) -> int:
        """How many have finished and wait for one before them."""
        return len(self._finished)

    @property
    def frontier(self) -> int:
        """The offset below which everything is finished."""
        return self._expected[0] if self._expected else self._last + 1

    @property
    def lag(self) -> int:
        """How far the newest finished offset is ahead of the frontier."""
        return max(self._finished, default=self.frontier) - self.frontier

    @property
    def last(self) -> int:
        """The newest offset that was expected."""
        return self._last

    def expect(self, offsets: Sequence[int]) -> None:
        """Add offsets at the end of the line; they must rise."""
        last = self._last
        for offset in offsets:
            if offset <= last:
                raise ValueError(f"offset {offset} arrived after {last}: offsets must rise")
            last = offset
        self._expected.extend(offsets)
        self._last = last

    def pass_over(self, offsets: Iterable[int]) -> None:
        """Finish offsets whose values nobody waits for."""
        expected = self._expected
        finished = self._finished
        for offset in offsets:
            if expected[0] != offset:
                finished[offset] = None
                continue
            expected.popleft()
            while finished and expected[0] in finished:
                del finished[expected.popleft()]

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
