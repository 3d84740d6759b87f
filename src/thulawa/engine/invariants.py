"""The invariants of a scheduler, checked against a recount from scratch.

The property tests check them after every step.
"""

from collections import Counter
from collections.abc import Sequence

from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import SchedulerState
from thulawa.engine.work_items import WorkItem


def check_invariants(state: SchedulerState, unfinished: Sequence[WorkItem]) -> None:
    """Raise AssertionError where the state contradicts itself or the ``unfinished`` records."""
    _check_counts(state, unfinished)
    _check_bounds(state, unfinished)
    _check_calls(state)
    if not state.stopped:
        _check_keys(state)
        _check_timers(state)
        _check_liveness(state)


def _check_counts(state: SchedulerState, unfinished: Sequence[WorkItem]) -> None:
    held, counters, emission = state.backpressure, state.counters, state.emission
    queues = state.queues.values()
    followers = [] if state.single_flight is None else state.single_flight.followers()
    offsets = [record.offset for record in unfinished]
    assert len(set(offsets)) == len(offsets), f"a record is in two places: {offsets}"
    assert len(unfinished) == held.records + held.parked, "held records are miscounted"
    size = sum(record.size for record in unfinished)
    assert size == held.bytes + held.parked_bytes, "held bytes are miscounted"
    assert state.following == len(followers), "followers are miscounted"
    assert held.parked == sum(queue.parked for queue in queues), "parked records are miscounted"
    assert held.parked_bytes == sum(queue.parked_bytes() for queue in queues)
    assert held.parked_keys == sum(queue.parked > 0 for queue in queues)
    assert list(emission.frontier.unfinished) == offsets, "the frontier is not what is unfinished"
    final = counters.succeeded + counters.failed
    undelivered = emission.buffered() + len(emission.undelivered)
    assert counters.arrived == len(unfinished) - undelivered + final, "records are miscounted"


def _check_bounds(state: SchedulerState, unfinished: Sequence[WorkItem]) -> None:
    held, bounds = state.backpressure, state.backpressure.bounds
    assert min(held.records, held.bytes, held.parked) >= 0
    assert held.records + held.parked <= bounds.records + bounds.parked, "too many records"
    largest = max((record.size for record in unfinished), default=0)
    most = bounds.bytes + held.allowed_bytes + max(1, largest)  # the last one may exceed it
    assert held.bytes + held.parked_bytes < most, "too many bytes"
    if not state.stopped:
        assert state.tracked_keys() <= bounds.keys + bounds.parked, "too many keys"
    if state.failing_keys is not None and state.options.quarantine is not None:
        assert len(state.failing_keys) <= state.options.quarantine.keys, "too many failing keys"


def _check_calls(state: SchedulerState) -> None:
    assert state.adaptive or len(state.calls) <= state.limit.permits, "more calls than permits"
    abandoned = state.calls.keys() - state.running()
    assert abandoned == state.abandoned.keys(), "a call is neither running nor abandoned"
    waiting = [q for plan in state.abandoned.values() for q, retry in plan.items() if retry]
    assert all(queue.retries for queue in waiting), "a retry is not at the head of its key"
    if state.several_lanes:
        lanes = Counter(lead.record.lane for lead in state.calls)
        counted = [lanes[lane] for lane in range(len(state.options.lanes.lanes))]
        assert state.ready.in_flight() == counted, "calls are miscounted by lane"
    if state.single_flight is not None:
        tickets = {ticket for lead in state.running() for ticket in lead.members()}
        tickets.update(ticket for queue in state.queues.values() for ticket in queue.retries or ())
        assert tickets.issuperset(state.single_flight.leaders.values()), "a leader makes no call"


def _check_timers(state: SchedulerState) -> None:
    running = state.running()
    timed = sum(lead.timer is not None for lead in running)
    assert timed == (len(running) if state.timed else 0), "a call has lost its timeout"
    abandoned = sum(lead.timer is not None for lead in state.abandoned)
    lingering = sum(queue.linger is not None for queue in state.queues.values())
    expected = timed + abandoned + lingering + state.backpressure.parked_keys
    # one more each for the rate and for the linger of a batch across keys
    assert expected <= len(state.timers) <= expected + 2, "timers are miscounted"


def _check_keys(state: SchedulerState) -> None:
    ready = state.ready.keys()
    assert len(ready) == state.ready.count == len(set(map(id, ready))), "ready keys are miscounted"
    if state.across_keys:
        assert state.ready_records == sum(map(len, ready)), "ready records are miscounted"
    active: Counter[KeyQueue] = Counter()
    in_calls = [Counter(ticket.queue for ticket in lead.members()) for lead in state.running()]
    for in_call in in_calls + [Counter(plan.keys()) for plan in state.abandoned.values()]:
        assert not in_call.keys() & active.keys(), "two calls of one key"
        active.update(in_call)
    if state.single_flight is not None:
        followers = Counter(ticket.queue for ticket in state.single_flight.followers())
        assert not followers.keys() & active.keys(), "a follower's key has a call"
        active.update(followers)
    for key, queue in state.queues.items():
        assert queue.key is key or queue.key == key
        states = [queue.stamp > 0, queue.active > 0, queue.parked > 0, queue.linger is not None]
        assert sum(states) == 1, f"key {key!r} is in states {states}"
        assert queue.active == active[queue], f"active tickets of key {key!r} are miscounted"
        offsets = [record.offset for record in queue.records()]
        assert offsets == sorted(offsets), f"key {key!r} is out of order"


def _check_liveness(state: SchedulerState) -> None:
    """Check that a call, a delivery, a timer or a pull will wake the scheduler."""
    free = len(state.calls) < state.limit.permits
    assert not (state.ready.count and free and not len(state.timers)), (
        "a ready key, a free permit, and nothing starts"
    )
    held = len(state.emission.frontier.unfinished)
    if held and not state.calls and not state.emission.undelivered:
        assert len(state.timers), "records are held and no event will come"
    # abandoned calls may hold as many keys as the bounds allow
    if not held and not state.draining and not state.abandoned:
        assert state.pull_pending, "nothing is held and nothing is pulled"
