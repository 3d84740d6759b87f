"""A server and a closed loop of callers in virtual time, for the tests of the adaptive limit.

The server is M/G/c with a FIFO queue: `capacity` slots, each a time at which it is free again. So
a call's end is known when it begins, and one heap of ends drives everything. By Little's law the
most calls it bears without a queue, and the fewest that keep it busy, is `capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import exp, inf
from random import Random

from thulawa.engine.limits import Limit, Verdict


@dataclass(frozen=True, slots=True)
class Measured:
    permits: float
    throughput: float


class Server:
    """`rejects`: calls beyond capacity fail fast with overload; `down`: every call times out."""

    def __init__(
        self, capacity: int, latency: float, *, sigma: float = 0.0, timeout: float = inf
    ) -> None:
        self.latency = latency
        self.sigma = sigma
        self.timeout = timeout
        self.rejects = False
        self.down = False
        self.failing = 0.0
        self._free_at = [-inf] * capacity

    @property
    def capacity(self) -> int:
        return len(self._free_at)

    @property
    def rate(self) -> float:
        return self.capacity / self.latency

    def resize(self, capacity: int) -> None:
        self._free_at = (sorted(self._free_at)[:capacity] + [-inf] * capacity)[:capacity]
        heapify(self._free_at)

    def call(self, now: float, rng: Random) -> tuple[float, Verdict]:
        """Return when the call that begins now ends, and how."""
        if self.down:
            return now + self.timeout, "overload"
        free_at = self._free_at[0]
        if self.rejects and free_at > now:
            return now + self.latency / 10, "overload"
        service = self.latency
        if self.sigma:
            service *= exp(self.sigma * rng.gauss() - self.sigma**2 / 2)
        end = max(free_at, now) + service
        heapreplace(self._free_at, end)
        if end > now + self.timeout:
            return now + self.timeout, "overload"
        fails = self.failing and rng.random() < self.failing
        return end, "failure" if fails else "success"


class Simulation:
    """Keep `limit.permits` calls in flight, or fewer where `demand` or `backlog` end first.

    Calls that end within one `tick` are handled together, before new ones begin, as an event loop
    does.
    """

    def __init__(self, limit: Limit, server: Server, seed: int, *, tick: float = 0.0) -> None:
        self.limit = limit
        self.server = server
        self.tick = tick
        self.now = 0.0
        self.demand: float = inf
        self.backlog: float = inf
        self.successes = 0
        self.peak_permits = 0
        self._rng = Random(seed)
        self._ends: list[tuple[float, float, Verdict]] = []
        self._permit_seconds = 0.0

    def run(self, seconds: float = inf, *, calls: float = inf) -> Measured:
        """Go on for so many virtual seconds or finished calls; measure this stretch."""
        began, until, successes = self.now, self.now + seconds, self.successes
        self._permit_seconds, self.peak_permits = 0.0, self.limit.permits
        while calls > 0:
            self._begin_calls()
            if not self._ends or self._ends[0][0] > until:
                self._advance(until)
                break
            tick_end = self._ends[0][0] + self.tick
            while self._ends and self._ends[0][0] <= tick_end:
                self._end_call()
                calls -= 1
        elapsed = self.now - began
        return Measured(self._permit_seconds / elapsed, (self.successes - successes) / elapsed)

    def _begin_calls(self) -> None:
        room = min(self.limit.permits, self.demand) - len(self._ends)
        while room > 0 and self.backlog > 0:
            room -= 1
            self.backlog -= 1
            end, verdict = self.server.call(self.now, self._rng)
            heappush(self._ends, (end, self.now, verdict))

    def _end_call(self) -> None:
        in_flight = len(self._ends)
        end, start, verdict = heappop(self._ends)
        self._advance(end)
        self.successes += verdict == "success"
        self.limit.observe(end - start, verdict, in_flight, end)
        if self.limit.permits > self.peak_permits:
            self.peak_permits = self.limit.permits

    def _advance(self, now: float) -> None:
        self._permit_seconds += self.limit.permits * (now - self.now)
        self.now = now
