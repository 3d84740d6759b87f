"""Histograms, and the frozen `Statistics` of an engine.

A histogram has sixteen buckets for each power of two, so a percentile is right to within 7 %.
Recording is O(1), about 60 ns, and memory is bounded by the buckets that occur.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack, unpack
from typing import Literal, TypeAlias

from thulawa.engine.limits import LimitReport

_FEW = 4
_UPPERMOST = 3 if sys.byteorder == "little" else 0

Bottleneck: TypeAlias = Literal[
    "limit", "abandoned", "rate", "keys", "source", "downstream", "parked"
]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in four numbers, in seconds."""

    count: int
    p50: float
    p99: float
    maximum: float


class Histogram:
    """A histogram of durations, in buckets of exponentially growing width.

    ``add`` is a list's own ``append``, so callers must call `fold`, which moves the durations
    into buckets, from time to time, off the hot path.
    """

    __slots__ = ("_buckets", "_pending", "add")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._pending: list[float] = []
        self.add = self._pending.append

    def fold(self, at_least: int = 1) -> None:
        """Move the durations added so far into buckets, if there are ``at_least`` so many."""
        pending = self._pending
        if len(pending) >= at_least:
            # the uppermost two bytes of a double are its exponent and four bits of its fraction
            quarters = memoryview(array("d", pending)).cast("B").cast("H")
            self._buckets.update(quarters[_UPPERMOST::4].tolist())
            pending.clear()

    def add_all(self, duration: float, count: int) -> None:
        """Add ``count`` equal durations, in O(1)."""
        if count < _FEW:
            for _ in range(count):
                self.add(duration)
        else:
            (_, _, _, bucket) = unpack("<4H", pack("<d", duration))
            self._buckets[bucket] += count

    def percentile(self, share: float) -> float:
        """Return a duration that at least ``share`` of all do not exceed."""
        self.fold()
        wanted = share * self._buckets.total()
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return _upper_edge(bucket)
        return 0.0

    def summary(self) -> Percentiles:
        """Return count, median, 99th percentile and maximum."""
        p50, p99, maximum = map(self.percentile, (0.5, 0.99, 1.0))
        return Percentiles(self._buckets.total(), p50, p99, maximum)

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add the `counts` of another histogram."""
        self._buckets.update(counts)

    def counts(self) -> dict[int, int]:
        """Return the number of durations in each bucket, for `merge`."""
        self.fold()
        return dict(self._buckets)


def _upper_edge(bucket: int) -> float:
    """Return the lower bound of the next bucket."""
    edge: float = unpack("<d", (bucket + 1 << 48).to_bytes(8, "little"))[0]
    return edge if bucket else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """One lane at one moment.

    ``waiting`` counts its records in the queues of their keys; ``oldest`` is the number of seconds
    since the first of them arrived. ``in_flight`` counts its calls, ``done`` its records that were
    emitted, and ``residence`` is their time from arrival to emission.
    """

    name: str
    waiting: int
    in_flight: int
    done: int
    oldest: float
    residence: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """An engine at one moment.

    Every record that arrived and is not finished is in exactly one of ``waiting`` (in its key's
    queue), ``in_flight_records``, ``following`` (waits for an equal request in flight),
    ``parked`` (waits for its retry), ``reordering`` (final, waits for a record before it) and
    ``undelivered``. Of the calls ``in_flight``, ``abandoned`` ones have timed out and not stopped
    yet: they keep their permit and their keys, but their records are counted elsewhere.
    ``bottleneck`` is what keeps the engine from having more calls in flight.
    """

    waiting: int
    in_flight: int
    in_flight_records: int
    abandoned: int
    following: int
    parked: int
    reordering: int
    undelivered: int
    held_bytes: int
    keys: int
    ready_keys: int
    quarantined_keys: int
    longest_queue: int
    longest_queue_key: object
    frontier: int
    frontier_lag: int
    bottleneck: Bottleneck
    intake_open: bool
    limit: LimitReport
    batch_size: int
    lanes: tuple[LaneStatistics, ...]
    arrived: int
    succeeded: int
    failed: int
    dropped: int
    retries: int
    overloads: int
    timeouts: int
    cache_hits: int
    followed: int
    latency: Percentiles
    residence: Percentiles
