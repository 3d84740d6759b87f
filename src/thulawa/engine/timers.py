"""One heap of all timers: retries, timeouts, lingering batches, tokens.

A cancelled timer stays in the heap until it is due or until more than half of the heap is
cancelled, when the heap is rebuilt. So adding costs O(log n), cancelling amortised O(1), and
memory is bounded by twice the live timers, even when every call has a timeout of an hour and
returns in a millisecond.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

Timer: TypeAlias = list[Any]  # [when, sequence, action or None once cancelled, subject]

_SLACK = 64


class Timers:
    """Actions with their subjects, in the order in which they are due."""

    __slots__ = ("_cancelled", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sequence = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, when: float, action: Callable[..., None], subject: Any = None) -> Timer:
        """Add a timer: `due` yields ``action`` and ``subject`` once ``when`` has come."""
        self._sequence += 1
        timer: Timer = [when, self._sequence, action, subject]
        heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancel a timer; nothing if it was due or cancelled before."""
        if timer[2] is None:
            return
        timer[2] = timer[3] = None
        self._cancelled += 1
        if self._cancelled > _SLACK and self._cancelled > len(self._heap) // 2:
            self._heap = [live for live in self._heap if live[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float | None:
        """Return the earliest time at which a timer is due, or None."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[tuple[Callable[..., None], Any]]:
        """Yield and remove what is due, earliest first, including timers added meanwhile."""
        while (when := self.next()) is not None and when <= now:
            timer = heappop(self._heap)
            action, subject = timer[2], timer[3]
            timer[2] = None  # so that a later cancel() is ignored
            yield action, subject
