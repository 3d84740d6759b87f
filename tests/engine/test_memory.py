"""The memory of the scheduler is bounded by its bounds, whatever happens.

Measured at a smaller scale than the benchmark: what is allocated after a quarter of the records
must not grow by more than a trifle until the end.
"""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from tests.engine.model_driver import Drive
from thulawa.engine.options import (
    Batch,
    Bounds,
    Lane,
    Lanes,
    Options,
    Quarantine,
    Retry,
    SingleFlight,
)
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    Overload,
    Terminal,
)

RECORDS = 8_000
BOUNDS = Bounds(records=100, keys=100, parked=20)
TRIFLE = 256 * 1024  # two histograms before they are folded

End = Callable[[Drive], None]


def succeed(of: Drive) -> None:
    of.succeed(*of.running.values())


def succeed_but_the_first(of: Drive) -> None:
    """Keep the very first record from ever finishing."""
    for call in list(of.running.values()):
        if call.offsets == [0]:
            of.fail(call, Overload())
        else:
            of.succeed(call)


def fail(of: Drive) -> None:
    for call in list(of.running.values()):
        of.fail(call, Terminal("always"))


def fail_and_retry(of: Drive) -> None:
    for call in list(of.running.values()):
        of.fail(call, ValueError("always"))


def answer(of: Drive) -> None:
    for call in list(of.running.values()):
        of.return_batch(call, ["ok" for _ in call.tickets])


SCENARIOS: dict[str, tuple[Options, End]] = {
    "every record of a key of its own": (Options(bounds=BOUNDS), succeed),
    "a time-out of an hour on every call": (Options(bounds=BOUNDS, timeout=3_600), succeed),
    "a deadline of an hour on every call": (Options(bounds=BOUNDS, deadline=3_600), succeed),
    "in partition order": (Options(bounds=BOUNDS, emit="partition"), succeed),
    "in the order of keys": (Options(bounds=BOUNDS, order="emit"), succeed),
    "every call fails, dead letters": (Options(bounds=BOUNDS, on_error="dead_letter"), fail),
    "every call fails, dropped": (Options(bounds=BOUNDS, on_error="drop"), fail),
    "every call fails again and again": (
        Options(bounds=BOUNDS, on_error="drop", retry=Retry(attempts=3, first=0.01)),
        fail_and_retry,
    ),
    "every key is quarantined": (
        Options(
            bounds=BOUNDS,
            on_error="drop",
            quarantine=Quarantine(after=1, seconds=1e9, keys=50),
        ),
        fail,
    ),
    "the first record never finishes": (Options(bounds=BOUNDS), succeed_but_the_first),
    "lanes that age": (
        Options(
            bounds=BOUNDS,
            in_flight=5,
            lanes=Lanes(lanes=(Lane(name="a"), Lane(name="b")), strict=True, ageing=0.05),
        ),
        succeed,
    ),
    "batches that linger": (Options(bounds=BOUNDS, batch=Batch(size=7, linger=0.01)), answer),
    "single flight": (
        Options(bounds=BOUNDS, single_flight=SingleFlight(by=lambda record: record.value)),
        succeed,
    ),
}


def feed(of: Drive, end: End, until: int) -> None:
    """Add records and end calls until a number of records has arrived."""
    counters, lanes = of.scheduler.state.counters, len(of.options.lanes.lanes)
    while (first := counters.arrived) < until:
        if of.pull is not None:
            offsets = range(first, first + of.pull.records)
            of.arrive(*(WorkItem(o, o, o // 2, timestamp=o, lane=o % lanes) for o in offsets))
        of.now += 0.001
        end(of)
        if of.outbox:
            of.deliver()
        of.emitted.clear()
        if of.wake is not None:
            of.tick()


@pytest.mark.parametrize("name", SCENARIOS)
def test_memory_is_flat(name: str) -> None:
    options, end = SCENARIOS[name]
    of = Drive(options, validate=False).begin()
    tracemalloc.start()
    try:
        feed(of, end, RECORDS // 4)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        feed(of, end, RECORDS)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    of.scheduler.validate()
    assert after - before < TRIFLE
