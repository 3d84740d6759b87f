"""Lane statistics of many engines, in a form that can be merged.

`Engine.statistics` describes each lane at one moment. `sample_lanes` samples it while the engine
runs; its result can be merged with those of other runs, tasks and workers.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from thulawa.engine.engine import Engine
from thulawa.engine.statistics import Histogram, Percentiles

_FIRST_INTERVAL, _INTERVAL = 0.01, 0.25  # seconds; short at first, to sample short runs too


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """One lane so far: its emitted records, and their time from arrival to emission.

    ``waiting``, ``in_flight`` and ``oldest`` (seconds) are the highest values sampled in any task,
    four times a second and more often at first.
    """

    done: int
    waiting: int
    in_flight: int
    oldest: float
    residence: Percentiles


class LaneSum(NamedTuple):
    """The same in a form that can be merged: a residence histogram and the highest values."""

    counts: dict[int, int]
    waiting: int = 0
    in_flight: int = 0
    oldest: float = 0.0

    def plus(self, other: "LaneSum") -> "LaneSum":
        """Return this merged with a sum of another time or task."""
        counts = {
            size: self.counts.get(size, 0) + other.counts.get(size, 0)
            for size in self.counts.keys() | other.counts.keys()
        }
        return LaneSum(
            counts,
            max(self.waiting, other.waiting),
            max(self.in_flight, other.in_flight),
            max(self.oldest, other.oldest),
        )


LaneSums: TypeAlias = dict[str, LaneSum]


def merge_lane_sums(one: Mapping[str, LaneSum], other: Mapping[str, LaneSum]) -> LaneSums:
    """Return both merged, lane by lane."""
    merged = dict(one)
    for name, more in other.items():
        merged[name] = merged[name].plus(more) if name in merged else more
    return merged


def summarize_lanes(sums: Mapping[str, LaneSum]) -> dict[str, LaneFigures]:
    """Return the figures of each lane."""
    figures = {}
    for name, (counts, waiting, in_flight, oldest) in sorted(sums.items()):
        histogram = Histogram()
        histogram.merge(counts)
        residence = histogram.summary()
        figures[name] = LaneFigures(
            done=residence.count,
            waiting=waiting,
            in_flight=in_flight,
            oldest=oldest,
            residence=residence,
        )
    return figures


@asynccontextmanager
async def sample_lanes(engine: Engine) -> AsyncIterator[LaneSums]:
    """Sample an engine's lanes inside the block; the sums are complete when it has ended."""
    seen: LaneSums = {}
    sampling = asyncio.create_task(_sample(engine, seen))
    try:
        yield seen
    finally:
        sampling.cancel()
        done = {name: LaneSum(counts) for name, counts in engine.residence_by_lane().items()}
        seen.update(merge_lane_sums(seen, done))


async def _sample(engine: Engine, seen: LaneSums) -> None:
    interval = _FIRST_INTERVAL
    while True:
        now = {
            lane.name: LaneSum({}, lane.waiting, lane.in_flight, lane.oldest)
            for lane in engine.statistics().lanes
        }
        seen.update(merge_lane_sums(seen, now))
        await asyncio.sleep(interval)
        interval = min(2 * interval, _INTERVAL)
