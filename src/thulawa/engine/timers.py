"""One heap of everything that is due later: retries, time-outs, lingering batches, tokens.

A cancelled entry stays in the heap until its time comes or until more than half of the heap is
cancelled, when the heap is rebuilt. So adding costs O(log n), cancelling amortised O(1), and
memory is bounded by twice what is live, even when every call carries a time-out of an hour
and returns in a millisecond.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

__all__ = ["Timer", "Timers"]

Timer: TypeAlias = list[Any]  # [when, sequence, action or None once cancelled, subject]

_SLACK = 64


class Timers:
    """Actions with their subjects, given out in the order of their times."""

    __slots__ = ("_cancelled", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sequence = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, when: float, action: Callable[..., None], subject: Any = None) -> Timer:
        """Have ``action`` given out with ``subject`` once ``when`` has come."""
        self._sequence += 1
        timer: Timer = [when, self._sequence, action, subject]
        heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Make sure that the timer is not given out any more."""
        if timer[2] is None:
            return
        timer[2] = timer[3] = None
        self._cancelled += 1
        if self._cancelled > _SLACK and self._cancelled > len(self._heap) // 2:
            self._heap = [live for live in self._heap if live[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float | None:
        """Give the earliest time at which something is due."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[tuple[Callable[..., None], Any]]:
        """Give out what is due, earliest first, including what is added while it runs."""
        while (when := self.next()) is not None and when <= now:
            timer = heappop(self._heap)
            action, subject = timer[2], timer[3]
            timer[2] = None  # a later cancel() of it changes nothing
            yield action, subject
