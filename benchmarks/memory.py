"""Memory over very many records: what is held is bounded by the bounds, not by the stream.

Each scenario runs in a fresh process, so that memory freed by others does not hide growth.
The base line is taken when a tenth of the records has gone through and every buffer has been
full once; from there on memory must stay where it is.
"""

import asyncio
import gc
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import on_loop
from benchmarks.report import Progress, Row
from thulawa.engine import Bounds, Engine, Options, Outcome, Quarantine, Retry, WorkItem

__all__ = ["SCENARIOS", "Scenario", "memory_rows"]

BOUNDS = Bounds(records=10_000, keys=10_000, parked=1_000)
ALLOWED_GROWTH_MIB = 16.0
_MIB = 1024 * 1024
_CHUNK = 1_000
_LOOKS = 100


@dataclass(frozen=True, slots=True)
class Scenario:
    """So many records over so many keys, and whether every call fails."""

    name: str
    records: int
    keys: int
    failing: bool = True
    quarantine: bool = False

    def scaled(self, share: float) -> "Scenario":
        """Give the same with fewer records and keys."""
        records = max(1_000, int(self.records * share))
        keys = max(100, int(self.keys * share))
        return Scenario(self.name, records, keys, self.failing, self.quarantine)


SCENARIOS = (
    Scenario("every call fails", 10_000_000, 1_000_000),
    Scenario("every call fails, quarantine", 2_000_000, 1_000_000, quarantine=True),
    Scenario("every call succeeds", 2_000_000, 1_000_000, failing=False),
)


class _Stream:
    """Source and sink of a scenario, and what was seen on the way."""

    def __init__(self, scenario: Scenario, engine: Engine, progress: Progress) -> None:
        self._scenario = scenario
        self._engine = engine
        self._progress = progress
        self._random = random.Random(1)
        self._made = 0
        self._done = 0
        self._look_at = scenario.records // 10
        self._step = max(1, scenario.records // _LOOKS)
        self.held = self.parked = self.keys = 0
        self.base = self.top = 0
        self.dead = 0

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:  # noqa: ARG002 no sizes
        first = self._made
        self._made = min(first + min(records, _CHUNK), self._scenario.records)
        key = self._random.randrange
        keys = self._scenario.keys
        return [WorkItem(number, key(keys), None, number) for number in range(first, self._made)]

    async def put(self, outcomes: list[Outcome]) -> None:
        self._done += len(outcomes)
        self.dead += sum(not outcome.ok for outcome in outcomes)
        if self._done >= self._look_at:
            self._look_at = self._done + self._step
            self._look()

    def _look(self) -> None:
        now = self._engine.statistics()
        unfinished = now.waiting + now.in_flight_records + now.parked + now.undelivered
        self.held = max(self.held, unfinished)
        self.parked = max(self.parked, now.parked)
        self.keys = max(self.keys, now.keys)
        rss = resident()
        self.base = self.base or rss
        self.top = max(self.top, rss)
        share = self._done / self._scenario.records
        self._progress(f"memory, {self._scenario.name}", f"{share:.0%}, {rss / _MIB:.0f} MiB")


async def _fail(record: WorkItem) -> Any:
    await asyncio.sleep(0)
    raise ValueError(record.offset)


async def _succeed(record: WorkItem) -> Any:
    await asyncio.sleep(0)
    return record.offset


async def _measure(scenario: Scenario) -> Row:
    options = Options(
        in_flight=1_000,
        bounds=BOUNDS,
        retry=Retry(attempts=2, first=0.02),
        on_error="dead_letter",
        quarantine=Quarantine(after=1, keys=10_000) if scenario.quarantine else None,
    )
    async with Engine(_fail if scenario.failing else _succeed, options) as engine:
        progress = Progress()
        stream = _Stream(scenario, engine, progress)
        begun = time.perf_counter()
        await engine.run(stream, stream)
        seconds = time.perf_counter() - begun
        progress.clear()
        retries = engine.statistics().retries
    return {
        "scenario": scenario.name,
        "records": scenario.records,
        "keys": scenario.keys,
        "dead_lettered": stream.dead,
        "retries": retries,
        "events_per_second": scenario.records / seconds,
        "peak_held": stream.held,
        "peak_parked": stream.parked,
        "peak_keys": stream.keys,
        "bound_held": BOUNDS.records + BOUNDS.parked,
        "rss_mib": stream.base / _MIB,
        "rss_growth_mib": (stream.top - stream.base) / _MIB,
    }


def measure(scenario: Scenario, loop: str) -> Row:
    """Run a scenario in this process."""
    gc.collect()
    return on_loop(loop, lambda: _measure(scenario))


def memory_rows(scenarios: Sequence[Scenario], loop: str) -> Iterator[Row]:
    """Run each scenario in a process of its own."""
    for scenario in scenarios:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (scenario, loop))
        within = row["peak_held"] <= row["bound_held"]
        flat = row["rss_growth_mib"] <= ALLOWED_GROWTH_MIB
        target = f"within bounds, ≤ {ALLOWED_GROWTH_MIB:g} MiB more"
        yield row | {"target": target, "met": within and flat}


def resident() -> int:
    """Give the bytes of memory that this process occupies, or has at most occupied."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    top = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return top if sys.platform == "darwin" else top * 1024
