"""The scheduler alone: no loop, no calls, no I/O.

Every call that starts succeeds; completions are reported 64 at a time, as the workers do, and
deliveries a hundred at a time. The time is CPU time and does not include making the records.
"""

import gc
import time
from collections import deque
from collections.abc import Iterable

from thulawa.engine import Bounds, Options, Scheduler, WorkItem
from thulawa.engine.events import (
    Arrived,
    Delivered,
    Drain,
    Emit,
    Instruction,
    Pull,
    Start,
    Succeeded,
    Tick,
)
from thulawa.engine.work_items import Ticket

__all__ = ["schedule"]

_BULK = 64
_DELIVERY = 100
_CHUNK = 1_000


class _Driver:
    """Answers a scheduler's instructions at once."""

    def __init__(self, options: Options, keys: int | None, records: int) -> None:
        self._scheduler = Scheduler(options)
        self._keys = keys or records
        self._records = records
        self._made = 0
        self._now = 0.0
        self._started: deque[Ticket] = deque()
        self._undelivered = 0
        self.delivered = 0
        self.making = 0.0

    def run(self) -> None:
        handle = self._scheduler.handle
        self._obey(handle(Tick(), self._now))
        started = self._started
        while started:
            self._now += 1e-5 * _BULK
            bulk = [started.popleft() for _ in range(min(_BULK, len(started)))]
            answers = [(ticket, ticket.attempt, None) for ticket in bulk]
            self._obey(handle(Succeeded(answers), self._now))
            if self._undelivered >= _DELIVERY or not started:
                self.delivered += self._undelivered
                count, self._undelivered = self._undelivered, 0
                self._obey(handle(Delivered(count), self._now))

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._started.extend(instruction.tickets)
            elif isinstance(instruction, Emit):
                self._undelivered += len(instruction.outcomes)
            elif isinstance(instruction, Pull):
                records = self._make(min(instruction.records, _CHUNK))
                event = Arrived(records) if records else Drain()
                self._obey(self._scheduler.handle(event, self._now))

    def _make(self, count: int) -> list[WorkItem]:
        begun = time.process_time()
        first = self._made
        self._made = min(first + count, self._records)
        records = [
            WorkItem(number, number % self._keys, None, number)
            for number in range(first, self._made)
        ]
        self.making += time.process_time() - begun
        return records


def schedule(keys: int | None, in_flight: int, records: int) -> float:
    """Schedule records of so many keys (None: all distinct); give events per CPU second."""
    held = max(10_000, 2 * in_flight)
    options = Options(in_flight=in_flight, bounds=Bounds(records=held, keys=held))
    driver = _Driver(options, keys, records)
    gc.collect()
    begun = time.process_time()
    driver.run()
    spent = time.process_time() - begun - driver.making
    assert driver.delivered == records
    return records / spent
