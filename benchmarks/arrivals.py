"""Records that come at their own pace, whoever is ready for them, and what became of each.

Latency is counted from the moment a record was due, not from when the engine took it in: a queue
in front of the engine is part of the wait. It runs on any event loop, so in virtual time too.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import merge
from math import inf
from random import Random

from thulawa.engine import Bounds, Engine, Lanes, Options, Outcome, WorkItem

__all__ = ["ENOUGH", "Load", "Ran", "overload", "run"]

ENOUGH = Bounds(records=1_000_000, keys=1_000_000, bytes=2**40)
"""Room for every record of a load: what comes is taken in at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many records a second of each lane, evenly spaced.

    Each has a key of its own, except in lanes of which ``keys`` says how many they have in turn.
    """

    rates: Mapping[str, float]
    seconds: float
    keys: Mapping[str, int] = field(default_factory=dict)

    def due(self, lanes: Sequence[str]) -> list[tuple[float, int, str]]:
        """Give when records are due, their lane and their key, in order."""
        of_each = [
            [
                (n / rate, lanes.index(name), f"{name}-{n % self.keys.get(name, inf):.0f}")
                for n in range(int(rate * self.seconds))
            ]
            for name, rate in self.rates.items()
        ]
        return list(merge(*of_each))


@dataclass(slots=True)
class Ran:
    """What became of the records: when each was due, was called and had its result, by lane.

    Times are from the beginning of the run. ``seconds`` is how long records were coming.
    """

    seconds: float
    due: dict[str, list[float]] = field(default_factory=dict)
    called: dict[str, list[float]] = field(default_factory=dict)
    ended: dict[str, list[float]] = field(default_factory=dict)

    def latency(self, lane: str, share: float) -> float:
        """Give the latency that this share of a lane's records, from due to done, did not exceed.

        Of those due in the second eighth of the run: it has settled, and the end is so far that
        three times the capacity has passed them on when nobody goes first.
        """
        first, last = self.seconds / 8, self.seconds / 4
        times = zip(self.due[lane], self.ended[lane], strict=True)
        waits = sorted(end - due for due, end in times if first <= due < last)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0

    def rate(self, lane: str) -> float:
        """Give how many records of a lane ended in a second while records were coming."""
        return sum(end < self.seconds for end in self.ended[lane]) / self.seconds


class _Arriving:
    """A source that gives what is due, and waits for what is not yet."""

    def __init__(self, due: list[tuple[float, int, str]], begun: float) -> None:
        self._due = due
        self._begun = begun
        self._next = 0

    async def read(self, records: int, size: int) -> list[WorkItem]:  # noqa: ARG002 no sizes
        if self._next == len(self._due):
            return []
        loop = asyncio.get_running_loop()
        wait = self._begun + self._due[self._next][0] - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        now = loop.time() - self._begun
        taken: list[WorkItem] = []
        while self._next < len(self._due) and len(taken) < records:
            due, lane, key = self._due[self._next]
            if taken and due > now:
                break
            taken.append(WorkItem(self._next, key, None, due, 0, lane))
            self._next += 1
        return taken


class _Noting:
    """A sink that notes when each record ended."""

    def __init__(self, ended: dict[int, float], begun: float) -> None:
        self._ended = ended
        self._begun = begun

    async def put(self, outcomes: list[Outcome]) -> None:
        now = asyncio.get_running_loop().time() - self._begun
        for outcome in outcomes:
            self._ended[outcome.record.offset] = now


async def run(
    load: Load,
    lanes: Lanes,
    *,
    in_flight: int,
    latency: float,
    seed: int = 0,
    drain: bool = True,
    bounds: Bounds = ENOUGH,
) -> Ran:
    """Run an engine over a load; a call takes about ``latency`` seconds, half to one and a half.

    Without ``drain`` the run is over when no more records come; what is not done then never is.
    """
    random = Random(seed)
    names = [lane.name for lane in lanes.lanes]
    known = [name for name in names if name in load.rates] or list(load.rates)
    place = names if len(names) > 1 else known  # one lane for all: no priorities
    due = load.due(place)
    begun = asyncio.get_running_loop().time()
    called: dict[int, float] = {}
    ended: dict[int, float] = {}

    async def call(record: WorkItem) -> None:
        called[record.offset] = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(latency * (0.5 + random.random()))

    options = Options(in_flight=in_flight, lanes=lanes, bounds=bounds)
    given = due if len(names) > 1 else [(when, 0, key) for when, _, key in due]
    async with Engine(call, options) as engine:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if drain else load.seconds):
                await engine.run(_Arriving(given, begun), _Noting(ended, begun))
    ran = Ran(load.seconds)
    for offset, (when, lane, _) in enumerate(due):
        for times, moment in (
            (ran.due, when),
            (ran.called, called.get(offset, inf)),
            (ran.ended, ended.get(offset, inf)),
        ):
            times.setdefault(place[lane], []).append(moment)
    return ran


def overload(capacity: float, seconds: float) -> tuple[Load, Load]:
    """Give Platinum's orders alone, half of what can be done, and three times of it with Gold's."""
    platinum = capacity / 2
    alone = Load({"Platinum": platinum}, seconds)
    return alone, Load({"Platinum": platinum, "Gold": 3 * capacity - platinum}, seconds)
