"""Counters and histograms of an engine, and the frozen picture that `statistics()` gives.

A histogram has sixteen buckets to each power of two, so a percentile is right to within 7 %;
recording is O(1), about 60 ns, and needs no memory beyond the buckets that occur.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from struct import pack, unpack
from typing import Literal, TypeAlias

from thulawa.engine.limits import LimitReport

__all__ = ["Binding", "Histogram", "LaneStatistics", "Percentiles", "Statistics"]

_FEW = 4
_UPPERMOST = 3 if sys.byteorder == "little" else 0

Binding: TypeAlias = Literal["limit", "abandoned", "rate", "keys", "source", "downstream", "parked"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution in four numbers, in seconds."""

    count: int
    p50: float
    p99: float
    top: float


class Histogram:
    """How long things took, in buckets that grow with their size.

    ``add`` is a list's own append; `fold` sorts what has come into buckets. Whoever adds calls
    it now and then, off the hot path.
    """

    __slots__ = ("_buckets", "_pending", "add")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._pending: list[float] = []
        self.add = self._pending.append

    def fold(self, at_least: int = 1) -> None:
        """Sort the durations added so far into buckets, if they are that many."""
        pending = self._pending
        if len(pending) >= at_least:
            # the uppermost two bytes of a double are its exponent and four bits of its fraction
            quarters = memoryview(array("d", pending)).cast("B").cast("H")
            self._buckets.update(quarters[_UPPERMOST::4].tolist())
            pending.clear()

    def add_all(self, duration: float, count: int) -> None:
        """Take note of as many equal durations; many cost no more than a few."""
        if count < _FEW:
            for _ in range(count):
                self.add(duration)
        else:
            (_, _, _, bucket) = unpack("<4H", pack("<d", duration))
            self._buckets[bucket] += count

    def percentile(self, share: float) -> float:
        """Give a duration that at least ``share`` of all do not exceed."""
        self.fold()
        wanted = share * self._buckets.total()
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return _upper_edge(bucket)
        return 0.0

    def summary(self) -> Percentiles:
        """Give the four numbers."""
        p50, p99, top = map(self.percentile, (0.5, 0.99, 1.0))
        return Percentiles(self._buckets.total(), p50, p99, top)

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add what another histogram's `counts` are."""
        self._buckets.update(counts)

    def counts(self) -> dict[int, int]:
        """Give how many fell into each bucket, to be merged elsewhere."""
        self.fold()
        return dict(self._buckets)


def _upper_edge(bucket: int) -> float:
    """Give the smallest number of the next bucket."""
    edge: float = unpack("<d", (bucket + 1 << 48).to_bytes(8, "little"))[0]
    return edge if bucket else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """One lane at one moment.

    ``waiting`` counts its records in the queues of their keys, and ``oldest`` says for how many
    seconds the first of them has been here; ``in_flight`` counts its calls, ``done`` its records
    whose result has left, and ``residence`` is their time from being taken in to that.
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

    Every record taken in and not finished is in exactly one of ``waiting`` (in its key's
    queue), ``in_flight_records``, ``following`` (waits for an equal question), ``parked``
    (waits for its retry), ``reordering`` (done, waits for one before it) and ``undelivered``.
    Of the calls ``in_flight``, ``abandoned`` ones have timed out and not stopped yet: they keep
    their permit and their keys, but their records are judged and elsewhere.
    ``binds`` says what keeps the engine from doing more.
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
    binds: Binding
    intake_open: bool
    limit: LimitReport
    batch_size: int
    lanes: tuple[LaneStatistics, ...]
    taken: int
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
