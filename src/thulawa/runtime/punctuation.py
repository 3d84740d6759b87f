"""Punctuations: calls that come with time, not with records.

Stream-time punctuations lie on the multiples of their interval; the first is due at once, that
is with the first record. Wall-clock ones begin one interval after they were asked for. Time
that jumps over several of them makes one call.
"""

import heapq
from collections.abc import Callable, Mapping
from itertools import count

from thulawa.core.errors import ConfigurationError
from thulawa.topology.processor import PunctuationType

__all__ = ["Punctuations", "Schedule"]

_NEVER = 2**63


class Schedule:
    """One punctuation; ``cancel`` ends it."""

    __slots__ = ("callback", "cancelled", "due", "interval")

    def __init__(self, due: int, interval: int, callback: Callable[[int], None]) -> None:
        self.due = due
        self.interval = interval
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Let it not come again."""
        self.cancelled = True

    def move_beyond(self, now: int) -> None:
        """Find the next multiple after ``now``."""
        self.due += ((now - self.due) // self.interval + 1) * self.interval


class Punctuations:
    """All punctuations of a task.

    >>> seen = []
    >>> punctuations = Punctuations()
    >>> _ = punctuations.add(10, "stream_time", seen.append, 0)
    >>> [punctuations.fire("stream_time", now) for now in (3, 9, 35, 40)]
    [True, False, True, True]
    >>> seen, punctuations.next_stream_time
    ([3, 35, 40], 50)
    """

    def __init__(self) -> None:
        self._order = count()
        self._named: dict[str, Schedule] = {}
        self._due: dict[PunctuationType, list[tuple[int, int, Schedule]]] = {
            "stream_time": [],
            "wall_clock_time": [],
        }
        self.next_stream_time = _NEVER
        self.next_wall_clock_time = _NEVER

    def add(
        self,
        interval: int,
        kind: PunctuationType,
        callback: Callable[[int], None],
        now: int,
        owner: str = "",
    ) -> Schedule:
        """Schedule a callback; ``now`` is the wall clock, ``owner`` the node that asked."""
        if interval < 1:
            raise ConfigurationError("a punctuation needs an interval of at least 1 ms")
        if kind not in self._due:
            raise ConfigurationError(f"{kind!r} is no kind of time; use one of {list(self._due)}")
        schedule = Schedule(now + interval if kind == "wall_clock_time" else 0, interval, callback)
        self._push(kind, schedule)
        number = sum(name.startswith(f"{owner}/") for name in self._named)
        self._named[f"{owner}/{number}/{kind}"] = schedule
        return schedule

    def due(self) -> dict[str, int]:
        """Tell when each punctuation is due, by owner, number and kind of time."""
        return {name: item.due for name, item in self._named.items() if not item.cancelled}

    def resume(self, due: Mapping[str, int]) -> None:
        """Let punctuations that were asked for again go on where they were.

        One that was cancelled does not come back; one that a processor asks for later than in
        its ``init`` has to be asked for again.
        """
        for name, schedule in self._named.items():
            if name in due:
                schedule.due = due[name]
        for kind, heap in self._due.items():
            waiting = [schedule for _, _, schedule in heap]
            heap.clear()
            for schedule in waiting:
                self._push(kind, schedule)

    def fire(self, kind: PunctuationType, now: int) -> bool:
        """Call what is due; tell whether anything was."""
        fired = False
        heap = self._due[kind]
        while heap and heap[0][0] <= now:
            _, _, schedule = heapq.heappop(heap)
            if schedule.cancelled:
                continue
            schedule.move_beyond(now)
            self._push(kind, schedule)
            schedule.callback(now)
            fired = True
        self._note_next(kind)
        return fired

    def _push(self, kind: PunctuationType, schedule: Schedule) -> None:
        heapq.heappush(self._due[kind], (schedule.due, next(self._order), schedule))
        self._note_next(kind)

    def _note_next(self, kind: PunctuationType) -> None:
        due = self._due[kind][0][0] if self._due[kind] else _NEVER
        if kind == "stream_time":
            self.next_stream_time = due
        else:
            self.next_wall_clock_time = due
