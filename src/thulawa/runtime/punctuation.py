"""Punctuations: scheduled callbacks by stream time or wall-clock time.

Stream-time punctuations fire at multiples of their interval, first with the first record.
Wall-clock punctuations fire first one interval after they were scheduled. If time jumps over
several multiples, the callback is called once.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from thulawa.errors import ConfigurationError
from thulawa.topology.processor import PunctuationType

_NEVER = 2**63


@dataclass(slots=True, eq=False)
class Schedule:
    """One scheduled punctuation."""

    due: int
    interval: int
    callback: Callable[[int], None]
    drop_cancelled: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the punctuation."""
        self.cancelled = True
        self.drop_cancelled()


class Punctuations:
    """All punctuations of a task.

    >>> seen = []
    >>> punctuations = Punctuations()
    >>> _ = punctuations.add(10, "stream_time", seen.append, 0)
    >>> for now in (3, 9, 35, 40):
    ...     punctuations.fire("stream_time", now)
    >>> seen, punctuations.next_stream_time
    ([3, 35, 40], 50)
    """

    def __init__(self) -> None:
        self._order = count()
        self._named: dict[str, Schedule] = {}  # those scheduled before `resume`
        self._started = False
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
        """Schedule a callback; ``now`` is the wall-clock time, ``owner`` the node."""
        if interval < 1:
            raise ConfigurationError("a punctuation needs an interval of at least 1 ms")
        if kind not in self._due:
            raise ConfigurationError(f"{kind!r} is not supported; use one of {list(self._due)}")
        due = now + interval if kind == "wall_clock_time" else 0
        schedule = Schedule(due, interval, callback, partial(self._drop_cancelled, kind))
        self._push(kind, schedule)
        if not self._started:
            number = sum(name.startswith(f"{owner}/") for name in self._named)
            self._named[f"{owner}/{number}/{kind}/{interval}"] = schedule
        return schedule

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def due(self) -> dict[str, int | None]:
        """Return when each punctuation scheduled before `resume` is due; None: cancelled."""
        return {name: None if one.cancelled else one.due for name, one in self._named.items()}

    def resume(self, due: Mapping[str, int | None]) -> None:
        """Restore the due times of the punctuations scheduled so far, as `due` returned them.

        A cancelled punctuation stays cancelled. One that a processor schedules after its ``init``
        is not restored.
        """
        self._started = True
        for name, schedule in self._named.items():
            time = due.get(name, schedule.due)
            schedule.cancelled |= time is None
            schedule.due = schedule.due if time is None else time
        for kind, heap in self._due.items():
            heap[:] = [(schedule.due, number, schedule) for _, number, schedule in heap]
            self._drop_cancelled(kind)

    def fire(self, kind: PunctuationType, now: int) -> None:
        """Fire the due punctuations; each is due next at its first multiple after ``now``."""
        heap = self._due[kind]
        while heap and heap[0][0] <= now:
            _, _, schedule = heapq.heappop(heap)
            schedule.due += ((now - schedule.due) // schedule.interval + 1) * schedule.interval
            self._push(kind, schedule)
            schedule.callback(now)

    def _push(self, kind: PunctuationType, schedule: Schedule) -> None:
        heapq.heappush(self._due[kind], (schedule.due, next(self._order), schedule))
        self._note_next(kind)

    def _drop_cancelled(self, kind: PunctuationType) -> None:
        heap = self._due[kind]
        heap[:] = [entry for entry in heap if not entry[2].cancelled]
        heapq.heapify(heap)
        self._note_next(kind)

    def _note_next(self, kind: PunctuationType) -> None:
        due = self._due[kind][0][0] if self._due[kind] else _NEVER
        if kind == "stream_time":
            self.next_stream_time = due
        else:
            self.next_wall_clock_time = due
