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
from dataclasses import dataclass, fields
from random import Random
from typing import TypeVar

from thulawa.errors import Overload
from thulawa.testing.models import Latency, constant

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
        self._counts = dict.fromkeys((field.name for field in fields(ServerStatistics)), 0)

    @property
    def ideal_limit(self) -> float:
        """The calls in flight that just fill the server: throughput × unloaded latency."""
        if self.network.mean == 0:
            return float(self.capacity)
        service = self.latency.mean
        return self.capacity * (1 + self.network.mean / service) if service else math.inf

    async def __call__(self, request: T) -> T:
        """Return ``request`` after network, queue and service."""
        self._counts["calls"] += 1
        self._set("in_flight", self._counts["in_flight"] + 1)
        try:
            if self.network.mean:
                await self.network(self._random)
            async with self._slot():
                await self.latency(self._random)
            self._counts["completed"] += 1
            return request
        finally:
            self._counts["in_flight"] -= 1

    def statistics(self) -> ServerStatistics:
        """Return the current counters."""
        return ServerStatistics(**self._counts | {"queued": len(self._queue)})

    def _set(self, gauge: str, value: int) -> None:
        self._counts[gauge] = value
        self._counts[f"peak_{gauge}"] = max(self._counts[f"peak_{gauge}"], value)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._counts["serving"] < self.capacity:
            self._set("serving", self._counts["serving"] + 1)
        else:
            await self._enqueue()
        try:
            yield
        finally:
            self._release()

    async def _enqueue(self) -> None:
        if len(self._queue) >= self.max_queue:
            self._counts["rejected"] += 1
            raise Overload("simulated: the queue is full", retry_after=self.retry_after)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[waiter] = None
        self._set("queued", len(self._queue))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._queue.pop(waiter, None)  # `_release` may have removed it already
            else:
                self._release()  # cancelled just after it got the slot
            raise

    def _release(self) -> None:
        while self._queue:
            waiter, _ = self._queue.popitem(last=False)
            if not waiter.cancelled():
                waiter.set_result(None)
                return
        self._counts["serving"] -= 1
