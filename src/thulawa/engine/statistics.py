"""Histograms, and the frozen `Statistics` of an engine.

A histogram has sixteen buckets for each power of two, so a percentile is right to within 7 %.
Recording is O(1), about 60 ns, and memory is bounded by the buckets that occur.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from struct import pack, unpack
from typing import TYPE_CHECKING, Literal, TypeAlias

from thulawa.engine.limits import LimitReport

if TYPE_CHECKING:
    from thulawa.engine.state import SchedulerState

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

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._buckets: Counter[int] = Counter(counts)
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

    def counts(self) -> dict[int, int]:
        """Return the number of durations in each bucket, which may be merged."""
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


def snapshot(state: "SchedulerState", now: float) -> Statistics:
    """Return the statistics of a scheduler at this moment."""
    held, emission = state.backpressure, state.emission
    lengths = {key: len(queue) for key, queue in state.queues.items()}
    longest = max(lengths, key=lengths.__getitem__, default=None)
    flight, failing = state.single_flight, state.failing_keys
    return Statistics(
        waiting=sum(lengths.values()) - held.parked,
        in_flight=len(state.calls),
        in_flight_records=sum(len(lead.members()) for lead in state.running()),
        abandoned=len(state.abandoned),
        following=state.following,
        parked=held.parked,
        reordering=emission.buffered(),
        undelivered=len(emission.undelivered),
        held_bytes=held.bytes + held.parked_bytes,
        keys=len(state.queues),
        ready_keys=state.ready.count,
        quarantined_keys=0 if failing is None else failing.quarantined(state.now),
        longest_queue=lengths.get(longest, 0),
        longest_queue_key=longest,
        frontier=emission.frontier.frontier,
        frontier_lag=emission.frontier.lag,
        bottleneck=_bottleneck(state),
        intake_open=held.open,
        limit=state.limit.report(),
        batch_size=state.max_batch(),
        lanes=_lanes(state, now),
        cache_hits=0 if flight is None else flight.hits,
        followed=0 if flight is None else flight.followed,
        latency=state.latency.summary(),
        residence=state.residence.summary(),
        **asdict(state.counters),
    )


def _lanes(state: "SchedulerState", now: float) -> tuple[LaneStatistics, ...]:
    lanes = state.options.lanes.lanes
    waiting = [0] * len(lanes)
    oldest = [now] * len(lanes)
    for queue in state.queues.values():
        for record in queue.records()[queue.parked :]:
            if not 0 <= record.lane < len(lanes):
                continue  # rejected, in a run that has failed
            waiting[record.lane] += 1
            oldest[record.lane] = min(oldest[record.lane], record.arrived)
    in_flight = state.ready.in_flight() if state.several_lanes else [len(state.calls)]
    residence = [histogram.summary() for histogram in state.residence_by_lane]
    return tuple(
        LaneStatistics(
            name=lane.name,
            waiting=waiting[index],
            in_flight=in_flight[index],
            done=residence[index].count,
            oldest=now - oldest[index],
            residence=residence[index],
        )
        for index, lane in enumerate(lanes)
    )


def _bottleneck(state: "SchedulerState") -> Bottleneck:
    """Return what keeps the scheduler from having more calls in flight."""
    if state.ready.count and len(state.calls) >= state.limit.permits:
        return "abandoned" if 2 * len(state.abandoned) > len(state.calls) else "limit"
    if state.ready.count and state.rate_limited and state.bucket.ready_at(state.now) > state.now:
        return "rate"
    # queued behind an active ticket of their key; lingering batches do not count
    behind = sum(len(queue) for queue in state.queues.values() if queue.active)
    if not state.backpressure.open:
        closed_by: dict[Bottleneck, int] = {
            "downstream": len(state.emission.undelivered),
            "parked": state.backpressure.excess(),
            "keys": behind + state.emission.buffered(),
        }
        most = max(closed_by, key=closed_by.__getitem__)
        if closed_by[most]:
            return most
    return "keys" if behind else "source"
