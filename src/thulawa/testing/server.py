"""A simulated service: a number of slots with a queue in front of them.

`Server` serves ``capacity`` calls at a time; further calls queue first in, first out. With more
than ``capacity`` calls in flight, throughput stays constant and latency grows in proportion
(Little's law: in flight = throughput × latency). `Server.ideal_limit` is the number of calls in
flight with full throughput and an empty queue: what an adaptive limit should find.

Invariant: a finished call passes its slot to the first queued call without releasing it in between;
otherwise a new call could overtake the queue. ``asyncio.Semaphore`` neither reports nor bounds the
length of its queue.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from thulawa.errors import Overload
from thulawa.testing.latency import Latency, constant

__all__ = ["Server", "ServerStatistics"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """The counters of a `Server`; peaks are the highest values so far."""

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

    A call returns its argument, so a server can replace a user function. If ``max_queue`` calls
    are queued, the next is rejected with `Overload` and ``retry_after``. ``network`` is latency
    that occupies no slot. ``latency`` may be changed while calls run, to simulate a degradation:
    calls served from then on use the new one.

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
        """Return ``request`` after network, queue and service."""
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
        """Return the current counters."""
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
            await self._enqueue()
        try:
            yield
        finally:
            self._release()

    async def _enqueue(self) -> None:
        if len(self._queue) >= self.max_queue:
            self._rejected += 1
            raise Overload("simulated: the queue is full", retry_after=self.retry_after)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[waiter] = None
        self._peak_queued = max(self._peak_queued, len(self._queue))
        try:
            await waiter
        except asyncio.CancelledError:
            self._cancel(waiter)
            raise

    def _cancel(self, waiter: "asyncio.Future[None]") -> None:
        if waiter.cancelled():
            self._queue.pop(waiter, None)  # `_release` may have removed it already
        else:
            # Cancelled just after it got a slot: release the slot.
            self._release()

    def _release(self) -> None:
        while self._queue:
            waiter, _ = self._queue.popitem(last=False)
            if not waiter.cancelled():
                waiter.set_result(None)
                return
        self._serving -= 1
