"""Runs the engine, or something to compare it with, over a workload and takes the time."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import get_ident
from typing import Any, TypeAlias, TypeVar

from benchmarks.workload import Workload
from thulawa.engine import Bounds, Engine, Options, Outcome, WorkItem, new_event_loop

__all__ = ["Arm", "Measured", "alone", "engine", "loops", "on_loop", "rare_gc", "sequential"]

_T = TypeVar("_T")
_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave. ``events`` were counted over ``seconds``; ``cpu`` is for a whole run."""

    records: int
    events: int
    seconds: float
    peak: int
    cpu: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds


class Service:
    """Stands for the other side: answers after its latency and knows how many calls overlap."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.peak = 0
        self.threads: set[int] = set()
        self._now = 0

    async def call(self, record: WorkItem) -> Any:
        """Answer after the latency; at once, without giving way, when it is 0."""
        self._now += 1
        if self._now > self.peak:
            self.peak = self._now
        if self.latency:
            await asyncio.sleep(self.latency)
        self._now -= 1
        return record.value

    def block(self, record: WorkItem) -> Any:
        """Answer after the latency and hold the thread meanwhile."""
        self.threads.add(get_ident())
        time.sleep(self.latency)
        return record.value


class _Source:
    """Makes records as they are asked for, a thousand at most at a time, as a poll would."""

    def __init__(self, workload: Workload) -> None:
        self._keys = workload.keys
        self._next = 0

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:  # noqa: ARG002 no sizes
        first = self._next
        self._next = min(first + min(records, _CHUNK), len(self._keys))
        keys = self._keys
        return [WorkItem(number, keys[number], None, number) for number in range(first, self._next)]


class _Clock:
    """A sink that starts the clock after ``lead_in`` events and stops it at the last."""

    def __init__(self, lead_in: int) -> None:
        self._lead_in = lead_in
        self.events = 0
        self._first = 0
        self._started = self._stopped = time.perf_counter()
        self._cpu = time.process_time()

    async def put(self, outcomes: list[Outcome]) -> None:
        self.count(len(outcomes))

    def count(self, events: int) -> None:
        self.events += events
        self._stopped = time.perf_counter()
        if self._first < self._lead_in <= self.events:
            self._first = self.events
            self._started = self._stopped

    def read(self, peak: int) -> Measured:
        counted = self.events - self._first
        seconds = self._stopped - self._started
        cpu = time.process_time() - self._cpu
        return Measured(self.events, counted, seconds, peak, cpu)


Arm: TypeAlias = Callable[[Workload], Coroutine[Any, Any, Measured]]


async def engine(workload: Workload, *, threads: int | None = None) -> Measured:
    """Run the engine; with ``threads``, over a plain function."""
    service = Service(workload.latency)
    held = max(10_000, 2 * workload.in_flight)
    options = Options(in_flight=workload.in_flight, bounds=Bounds(records=held, keys=held))
    function = service.call if threads is None else service.block
    clock = _Clock(workload.lead_in)
    async with Engine(function, options, threads=threads or 1) as running:
        await running.run(_Source(workload), clock)
    return clock.read(service.peak or len(service.threads))


async def rare_gc(workload: Workload) -> Measured:
    """Run the engine as a host may that owns its process: with fewer garbage collections.

    Python looks for garbage after 700 new objects, and calls in flight are many new objects.
    """
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        return await engine(workload)
    finally:
        gc.set_threshold(*usual)


async def alone(workload: Workload) -> Measured:
    """Make the same calls from as many tasks as are allowed in flight, without any engine.

    No order, no bounds, no retries: what the loop and the calls themselves cost.
    """
    service = Service(workload.latency)
    clock = _Clock(workload.lead_in)
    records = (WorkItem(number, key, None, number) for number, key in enumerate(workload.keys))

    async def work() -> None:
        for record in records:
            await service.call(record)
            clock.count(1)

    await asyncio.gather(*(work() for _ in range(workload.in_flight)))
    return clock.read(service.peak)


async def sequential(workload: Workload) -> Measured:
    """Make the same calls one after another."""
    service = Service(workload.latency)
    clock = _Clock(workload.lead_in)
    for number, key in enumerate(workload.keys):
        await service.call(WorkItem(number, key, None, number))
        clock.count(1)
    return clock.read(service.peak)


def loops() -> list[str]:
    """Name the event loops there are, the engine's own choice first."""
    return ["asyncio"] if find_spec("uvloop") is None else ["uvloop", "asyncio"]


def on_loop(loop: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run on a fresh loop of this kind, without the garbage and the messages of others."""
    log = logging.getLogger("thulawa")
    level = log.level
    log.setLevel(logging.ERROR)
    gc.collect()
    factory = asyncio.new_event_loop if loop == "asyncio" else new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work())
    finally:
        log.setLevel(level)
