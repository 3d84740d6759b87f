"""A simulated downstream: a number of slots, a queue in front of them, and Little's law.

Real services answer in their own time as long as they have a free worker and let callers
queue when they have not. `Server` is that and no more: ``capacity`` calls are served at a
time, later ones wait first in, first out, so once more than ``capacity`` calls are in flight
the throughput stays where it is and the latency grows in proportion (Little's law:
in flight = throughput × latency). The number of calls in flight at which throughput is full
and nobody queues is `Server.ideal_limit`: what an adaptive limit ought to find.

Invariant: a slot is handed from the call that leaves to the first that waits, without being
free in between; otherwise a newcomer could overtake the queue. ``asyncio.Semaphore`` was the
first thing tried and does not tell how long its queue is, nor let it be bounded.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from thulawa.core.errors import Overload
from thulawa.testing.latency import Latency, constant

__all__ = ["Server", "ServerStatistics"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """What a `Server` has seen so far. Peaks are the highest ever reached."""

    calls: int
    completed: int
    rejected: int
    in_flight: int
    serving: int
    queued: int
    peak_in_flight: int
    peak_serving: int
    peak_queued: int


class Server:
    """Serve ``capacity`` calls at a time, each for a drawn ``latency``; the rest queue.

    A call answers with what it was asked, so a server can stand for a user function. When
    ``max_queue`` calls wait already, the next is refused with `Overload` and ``retry_after``.
    ``network`` is time on the wire, which holds no slot. ``latency`` may be set while calls
    run: those served from then on take the new one, which is how a service degrades.

    >>> async def main():
    ...     server = Server(1, constant(0.01), random=Random(1))
    ...     answers = await asyncio.gather(server("a"), server("b"))
    ...     return answers, server.statistics().peak_queued
    >>> asyncio.run(main())
    (['a', 'b'], 1)
    """

    def __init__(
        self,
        capacity: int,
        latency: Latency,
        *,
        random: Random,
        max_queue: int | None = None,
        retry_after: float | None = None,
        network: Latency | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a server needs a capacity of at least 1, not {capacity}")
        self.capacity = capacity
        self.latency = latency
        self.network = network or constant(0)
        self.max_queue = math.inf if max_queue is None else max_queue
        self.retry_after = retry_after
        self._random = random
        self._queue: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._serving = self._in_flight = 0
        self._calls = self._completed = self._rejected = 0
        self._peak_serving = self._peak_in_flight = self._peak_queued = 0

    @property
    def ideal_limit(self) -> float:
        """The calls in flight that just fill the server: throughput × unloaded latency."""
        if self.network.mean == 0:
            return float(self.capacity)
        service = self.latency.mean
        return self.capacity * (1 + self.network.mean / service) if service else math.inf

    async def __call__(self, request: T) -> T:
        """Answer with ``request``, after network, queue and service."""
        self._calls += 1
        self._in_flight += 1
        self._peak_in_flight = max(self._peak_in_flight, self._in_flight)
        try:
            if self.network.mean:
                await self.network(self._random)
            async with self._slot():
                await self.latency(self._random)
            self._completed += 1
            return request
        finally:
            self._in_flight -= 1

    def statistics(self) -> ServerStatistics:
        """Return what happened so far."""
        return ServerStatistics(
            calls=self._calls,
            completed=self._completed,
            rejected=self._rejected,
            in_flight=self._in_flight,
            serving=self._serving,
            queued=len(self._queue),
            peak_in_flight=self._peak_in_flight,
            peak_serving=self._peak_serving,
            peak_queued=self._peak_queued,
        )

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._serving < self.capacity:
            self._serving += 1
            self._peak_serving = max(self._peak_serving, self._serving)
        else:
            await self._wait_in_line()
        try:
            yield
        finally:
            self._hand_on()

    async def _wait_in_line(self) -> None:
        if len(self._queue) >= self.max_queue:
            self._rejected += 1
            raise Overload("simulated: the queue is full", retry_after=self.retry_after)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[turn] = None
        self._peak_queued = max(self._peak_queued, len(self._queue))
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(turn)
            raise

    def _give_up(self, turn: "asyncio.Future[None]") -> None:
        if turn.cancelled():
            self._queue.pop(turn, None)  # a slot handed on meanwhile has skipped it already
        else:
            # Cancelled in the very moment the slot was handed over: pass it on.
            self._hand_on()

    def _hand_on(self) -> None:
        while self._queue:
            turn, _ = self._queue.popitem(last=False)
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._serving -= 1
