"""Lane statistics of many engines, in a form that can be merged.

`Engine.statistics` describes each lane at one moment. `sample_lanes` samples it while the engine
runs; its result can be merged with those of other runs, tasks and workers.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from thulawa.engine.engine import Engine
from thulawa.engine.statistics import Histogram, LaneStatistics

_FIRST_INTERVAL, _INTERVAL = 0.01, 0.25  # seconds; short at first, to sample short runs too


class LaneSum(NamedTuple):
    """A lane's residence histogram and highest values, in a form that can be merged."""

    counts: dict[int, int]
    waiting: int = 0
    in_flight: int = 0
    oldest: float = 0.0


LaneSums: TypeAlias = dict[str, LaneSum]


def merge_lane_sums(one: Mapping[str, LaneSum], other: Mapping[str, LaneSum]) -> LaneSums:
    """Return both merged, lane by lane."""
    merged = dict(one)
    for name, new in other.items():
        old = merged.get(name, LaneSum({}))
        counts = Counter(old.counts)
        counts.update(new.counts)
        merged[name] = LaneSum(
            dict(counts),
            max(old.waiting, new.waiting),
            max(old.in_flight, new.in_flight),
            max(old.oldest, new.oldest),
        )
    return merged


def summarize_lanes(sums: Mapping[str, LaneSum]) -> dict[str, LaneStatistics]:
    """Return the statistics of each lane over all samples.

    ``waiting``, ``in_flight`` and ``oldest`` (seconds) are the highest values sampled in any task,
    four times a second and more often at first.
    """
    lanes = {}
    for name, (counts, waiting, in_flight, oldest) in sorted(sums.items()):
        residence = Histogram(counts).summary()
        lanes[name] = LaneStatistics(
            name=name,
            waiting=waiting,
            in_flight=in_flight,
            done=residence.count,
            oldest=oldest,
            residence=residence,
        )
    return lanes


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
