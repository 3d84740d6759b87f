"""What the lanes of a `map_by_key` have come to, summed up over the tasks of a query.

Tasks tell the driver when they end, through an accumulator of Spark: what was counted in a task
that failed is lost with it, and what a repeated one did is counted as what it is, work done.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from thulawa.engine import Engine
from thulawa.engine.statistics import Histogram, Percentiles

__all__ = ["LaneFigures", "LaneReport", "watched"]

_AT_FIRST, _EVERY = 0.01, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """One lane so far: its rows done, and how long they stayed from being taken in to the result.

    ``waiting``, ``in_flight`` and ``oldest`` (seconds) are the highest that was seen in any task,
    looked at four times a second, and more often at first.
    """

    done: int
    waiting: int
    in_flight: int
    oldest: float
    residence: Percentiles


class _Sum(NamedTuple):
    """The same on its way to the driver: what can be added up."""

    counts: dict[int, int]
    waiting: int = 0
    in_flight: int = 0
    oldest: float = 0.0

    def plus(self, other: "_Sum") -> "_Sum":
        counts = {
            size: self.counts.get(size, 0) + other.counts.get(size, 0)
            for size in self.counts.keys() | other.counts.keys()
        }
        return _Sum(
            counts,
            max(self.waiting, other.waiting),
            max(self.in_flight, other.in_flight),
            max(self.oldest, other.oldest),
        )


_Sums: TypeAlias = dict[str, _Sum]


class _Adding(AccumulatorParam[_Sums]):
    """How what tasks tell is added up."""

    def zero(self, value: _Sums) -> _Sums:  # noqa: ARG002 Spark's signature
        """Begin with nothing."""
        return {}

    def addInPlace(self, value1: _Sums, value2: _Sums) -> _Sums:  # noqa: N802 Spark's name
        """Add lane by lane."""
        both = dict(value1)
        for name, more in value2.items():
            both[name] = both[name].plus(more) if name in both else more
        return both


class LaneReport:
    """Collects the figures of lanes: ``map_by_key(..., report=report)``, then ``report.lanes()``.

    .. versionadded:: 0.1.0
    """

    def __init__(self, spark: SparkSession) -> None:
        self._sums = spark.sparkContext.accumulator({}, _Adding())

    def lanes(self) -> dict[str, LaneFigures]:
        """Give the figures of each lane, of all tasks that have ended."""
        return {name: _figures(one) for name, one in sorted(self._sums.value.items())}

    def add(self, sums: _Sums) -> None:
        """Tell the driver, in a task."""
        self._sums.add(sums)


def _figures(one: _Sum) -> LaneFigures:
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


@contextmanager
def watched(
    report: LaneReport | None, engine: Engine, loop: asyncio.AbstractEventLoop
) -> Iterator[None]:
    """Look at an engine's lanes while it runs, and report them when it has."""
    if report is None:
        yield
        return
    seen: _Sums = {}
    watching: Any = asyncio.run_coroutine_threadsafe(_watch(engine, seen), loop)
    try:
        yield
    finally:
        watching.cancel()
        report.add(_total(engine, seen))


async def _watch(engine: Engine, seen: _Sums) -> None:
    pause = _AT_FIRST  # short batches are to be seen too
    while True:
        for lane in engine.statistics().lanes:
            now = _Sum({}, lane.waiting, lane.in_flight, lane.oldest)
            seen[lane.name] = seen[lane.name].plus(now) if lane.name in seen else now
        await asyncio.sleep(pause)
        pause = min(2 * pause, _EVERY)


def _total(engine: Engine, seen: _Sums) -> _Sums:
    return {
        name: _Sum(counts).plus(seen.get(name, _Sum({})))
        for name, counts in engine.residence_by_lane().items()
    }
