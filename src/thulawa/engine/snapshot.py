"""A scheduler seen from outside: the picture `statistics()` gives, and a check of its invariants.

`audit` recounts everything from the queues up and compares it with the counters that the
scheduler keeps as it goes; the property tests call it after every step.
"""

from collections import Counter
from typing import TYPE_CHECKING

from thulawa.engine.queues import KeyQueue
from thulawa.engine.statistics import Binding, LaneStatistics, Statistics

if TYPE_CHECKING:
    from thulawa.engine.scheduler import Scheduler

__all__ = ["audit", "picture"]


def picture(of: "Scheduler", now: float) -> Statistics:
    """Describe the scheduler at this moment."""
    ledger, emission, counters = of.ledger, of.emission, of.counters
    lengths = {key: len(queue) for key, queue in of.queues.items()}
    longest = max(lengths, key=lengths.__getitem__, default=None)
    waiting = sum(lengths.values()) - ledger.parked
    return Statistics(
        waiting=waiting,
        in_flight=len(of.calls),
        in_flight_records=sum(len(lead.members()) for lead in of.running()),
        abandoned=len(of.abandoned),
        following=of.following,
        parked=ledger.parked,
        reordering=emission.held_back(),
        undelivered=len(emission.undelivered),
        held_bytes=ledger.bytes + ledger.parked_bytes,
        keys=len(of.queues),
        ready_keys=of.ready.count,
        quarantined_keys=0 if of.failing is None else of.failing.quarantined(of.now),
        longest_queue=lengths.get(longest, 0),
        longest_queue_key=longest,
        frontier=emission.frontier.frontier,
        frontier_lag=emission.frontier.lag,
        binds=_binding(of),
        intake_open=ledger.open,
        limit=of.limit.report(),
        batch_size=1 if of.batch_size is None else of.batch_size.now,
        lanes=_lanes(of, now),
        taken=counters.taken,
        succeeded=counters.succeeded,
        failed=counters.failed,
        dropped=counters.dropped,
        retries=counters.retries,
        overloads=counters.overloads,
        timeouts=counters.timeouts,
        cache_hits=0 if of.answers is None else of.answers.hits,
        followed=0 if of.answers is None else of.answers.followed,
        latency=of.latency.summary(),
        residence=of.residence.summary(),
    )


def _lanes(of: "Scheduler", now: float) -> tuple[LaneStatistics, ...]:
    waiting = [0] * len(of.options.lanes.lanes)
    oldest = [now] * len(waiting)
    for queue in of.queues.values():
        for record in queue.records()[queue.parked :]:
            if not 0 <= record.lane < len(waiting):
                continue  # it has ended the run, and is given back
            waiting[record.lane] += 1
            oldest[record.lane] = min(oldest[record.lane], record.taken)
    in_flight = of.ready.in_flight() if of.several_lanes else [len(of.calls)]
    stays = [histogram.summary() for histogram in of.by_lane]
    return tuple(
        LaneStatistics(
            name=lane.name,
            waiting=waiting[place],
            in_flight=in_flight[place],
            done=stays[place].count,
            oldest=now - oldest[place],
            residence=stays[place],
        )
        for place, lane in enumerate(of.options.lanes.lanes)
    )


def _binding(of: "Scheduler") -> Binding:
    """Say what keeps the scheduler from having more calls in flight."""
    if of.ready.count and len(of.calls) >= of.limit.permits:
        return "abandoned" if 2 * len(of.abandoned) > len(of.calls) else "limit"
    if of.ready.count and of.gated and of.bucket.ready_at(of.now) > of.now:
        return "rate"
    # behind others of their key, as against those that wait for a batch to be filled
    behind = sum(len(queue) for queue in of.queues.values() if queue.taken)
    if not of.ledger.open:
        closed_by: dict[Binding, int] = {
            "downstream": len(of.emission.undelivered),
            "parked": of.ledger.excess(),
            "keys": behind + of.emission.held_back(),
        }
        most = max(closed_by, key=closed_by.__getitem__)
        if closed_by[most]:
            return most
    return "keys" if behind else "source"


def audit(of: "Scheduler") -> None:
    """Raise AssertionError where the scheduler contradicts itself."""
    _audit_counts(of)
    _audit_bounds(of)
    _audit_calls(of)
    if not of.stopped:
        _audit_keys(of)
        _audit_timers(of)
        _audit_liveness(of)


def _audit_counts(of: "Scheduler") -> None:
    ledger = of.ledger
    queues = of.queues.values()
    followers = [] if of.answers is None else of.answers.followers()
    unfinished = of.unfinished()
    offsets = [record.offset for record in unfinished]
    assert len(set(offsets)) == len(offsets), f"a record is in two places: {offsets}"
    assert len(unfinished) == ledger.records + ledger.parked, "held is not what is unfinished"
    size = sum(record.size for record in unfinished)
    assert size == ledger.bytes + ledger.parked_bytes, "bytes held are miscounted"
    assert of.following == len(followers), "followers are miscounted"
    assert ledger.parked == sum(queue.parked for queue in queues), "parked is miscounted"
    assert ledger.parked_bytes == sum(queue.parked_bytes() for queue in queues)
    assert ledger.parked_keys == sum(queue.parked > 0 for queue in queues)
    assert list(of.emission.frontier) == offsets, "the frontier is not what is unfinished"
    assert of.counters.taken == (
        len(unfinished) - _final_but_held(of) + of.counters.succeeded + of.counters.failed
    ), "records taken in are not records accounted for"


def _final_but_held(of: "Scheduler") -> int:
    return of.emission.held_back() + len(of.emission.undelivered)


def _audit_bounds(of: "Scheduler") -> None:
    ledger, bounds = of.ledger, of.ledger.bounds
    assert min(ledger.records, ledger.bytes, ledger.parked) >= 0
    assert ledger.records + ledger.parked <= bounds.records + bounds.parked, "too many records"
    largest = max((record.size for record in of.unfinished()), default=0)
    most = bounds.bytes + ledger.allowed_bytes + max(1, largest)  # the last one may exceed it
    assert ledger.bytes + ledger.parked_bytes < most, "too many bytes"
    if not of.stopped:
        assert of.tracked_keys() <= bounds.keys + bounds.parked, "too many keys"
    if of.failing is not None and of.options.quarantine is not None:
        assert len(of.failing) <= of.options.quarantine.keys, "too many failing keys"


def _audit_calls(of: "Scheduler") -> None:
    assert of.adapts or len(of.calls) <= of.limit.permits, "more calls than permits"
    abandoned = of.calls.keys() - of.running()
    assert abandoned == of.abandoned.keys(), "a call is neither awaited nor abandoned"
    waiting = [q for plan in of.abandoned.values() for q, retry in plan.items() if retry]
    assert all(queue.retries for queue in waiting), "what is to be retried is not at its head"
    if of.several_lanes:
        lanes = Counter(lead.record.lane for lead in of.calls)
        counted = [lanes[lane] for lane in range(len(of.options.lanes.lanes))]
        assert of.ready.in_flight() == counted, "calls are miscounted by lane"
    if of.answers is not None:
        asking = {ticket for lead in of.running() for ticket in lead.members()}
        asking.update(ticket for queue in of.queues.values() for ticket in queue.retries or ())
        assert asking.issuperset(of.answers.leaders()), "an answer is awaited that nobody asks for"


def _audit_timers(of: "Scheduler") -> None:
    running = of.running()
    timed = sum(lead.timer is not None for lead in running)
    assert timed == (len(running) if of.timed else 0), "a call has lost its time-out"
    abandoned = sum(lead.timer is not None for lead in of.abandoned)
    lingering = sum(queue.linger is not None for queue in of.queues.values())
    expected = timed + abandoned + lingering + of.ledger.parked_keys
    # one more each for the rate and for the linger of a batch across keys
    assert expected <= len(of.timers) <= expected + 2, "timers are miscounted"


def _audit_keys(of: "Scheduler") -> None:
    ready = of.ready.keys()
    assert len(ready) == of.ready.count == len(set(map(id, ready))), "ready keys are miscounted"
    if of.options.batch is not None and of.options.batch.across_keys:
        assert of.ready_records == sum(map(len, ready)), "ready records are miscounted"
    taken: Counter[KeyQueue] = Counter()
    in_calls = [Counter(ticket.queue for ticket in lead.members()) for lead in of.running()]
    for in_call in in_calls + [Counter(plan.keys()) for plan in of.abandoned.values()]:
        assert not in_call.keys() & taken.keys(), "two calls of one key"
        taken.update(in_call)
    if of.answers is not None:
        followers = Counter(ticket.queue for ticket in of.answers.followers())
        assert not followers.keys() & taken.keys(), "a follower's key is in use"
        taken.update(followers)
    for key, queue in of.queues.items():
        assert queue.key is key or queue.key == key
        states = [queue.stamp > 0, queue.taken > 0, queue.parked > 0, queue.linger is not None]
        assert sum(states) == 1, f"key {key!r} is in states {states}"
        assert queue.taken == taken[queue], f"key {key!r} is taken by nobody"
        offsets = [record.offset for record in queue.records()]
        assert offsets == sorted(offsets), f"key {key!r} is out of order"


def _audit_liveness(of: "Scheduler") -> None:
    """With nothing under way there must be something that will wake the scheduler."""
    assert not (of.ready.count and len(of.calls) < of.limit.permits and not len(of.timers)), (
        "a ready key, a free permit, and nothing starts"
    )
    if len(of.emission.frontier) and not of.calls and not of.emission.undelivered:
        assert len(of.timers), "records are held and nothing will ever happen"
    # an abandoned call may take up all the keys there may be
    if not len(of.emission.frontier) and not of.draining and not of.abandoned:
        assert of.pulling, "nothing is held and nothing is asked for"
