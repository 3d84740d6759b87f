"""What the lanes of engines have come to: figures that can be added up.

An engine tells of each lane at one moment, and of its last run. Whoever looks on while it runs
(`watched`) has both in one, to be added to what other runs, tasks and workers have seen.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from thulawa.engine.engine import Engine
from thulawa.engine.statistics import Histogram, Percentiles

__all__ = ["LaneFigures", "LaneSum", "LaneSums", "added", "figures", "watched"]

_AT_FIRST, _EVERY = 0.01, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """One lane so far: its records done, and how long they stayed from being taken in to the end.

    ``waiting``, ``in_flight`` and ``oldest`` (seconds) are the highest that was seen in any task,
    looked at four times a second, and more often at first.
    """

    done: int
    waiting: int
    in_flight: int
    oldest: float
    residence: Percentiles


class LaneSum(NamedTuple):
    """The same in a form that can be added up: how many stayed how long, and the highest seen."""

    counts: dict[int, int]
    waiting: int = 0
    in_flight: int = 0
    oldest: float = 0.0

    def plus(self, other: "LaneSum") -> "LaneSum":
        """Add what was seen elsewhere, or later."""
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


def added(one: Mapping[str, LaneSum], other: Mapping[str, LaneSum]) -> LaneSums:
    """Add lane by lane."""
    both = dict(one)
    for name, more in other.items():
        both[name] = both[name].plus(more) if name in both else more
    return both


def figures(sums: Mapping[str, LaneSum]) -> dict[str, LaneFigures]:
    """Give the figures of each lane."""
    return {name: _figures(one) for name, one in sorted(sums.items())}


def _figures(one: LaneSum) -> LaneFigures:
    histogram = Histogram()
    histogram.merge(one.counts)
    stayed = histogram.summary()
    return LaneFigures(
        done=stayed.count,
        waiting=one.waiting,
        in_flight=one.in_flight,
        oldest=one.oldest,
        residence=stayed,
    )


@asynccontextmanager
async def watched(engine: Engine) -> AsyncIterator[LaneSums]:
    """Look at an engine's lanes while it runs; what is given is whole when the block has ended."""
    seen: LaneSums = {}
    watching = asyncio.create_task(_watch(engine, seen))
    try:
        yield seen
    finally:
        watching.cancel()
        done = {name: LaneSum(counts) for name, counts in engine.residence_by_lane().items()}
        seen.update(added(seen, done))


async def _watch(engine: Engine, seen: LaneSums) -> None:
    pause = _AT_FIRST  # short runs are to be seen too
    while True:
        now = {
            lane.name: LaneSum({}, lane.waiting, lane.in_flight, lane.oldest)
            for lane in engine.statistics().lanes
        }
        seen.update(added(seen, now))
        await asyncio.sleep(pause)
        pause = min(2 * pause, _EVERY)
