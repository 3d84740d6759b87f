"""A record's result is final: it succeeded, or failed for good.

The record is emitted as soon as the emit order allows it. Its followers (single flight) get the
same result. A key is released only when the result of its record is final.
"""

from typing import Any

from thulawa.engine.events import Abort
from thulawa.engine.readiness import release
from thulawa.engine.state import SchedulerState
from thulawa.engine.work_items import Outcome, Ticket
from thulawa.errors import BadKey, BadLane, Quarantined


def succeed(state: SchedulerState, ticket: Ticket, result: Any) -> None:
    """Complete a record and its followers with a result."""
    state.counters.succeeded += 1
    record = ticket.record
    outcome = Outcome(record, result, None, ticket.attempt)
    if state.emission.reorders:
        _emit(state, outcome)
    else:
        state.residence.add(state.now - record.arrived)
        if state.several_lanes:
            state.residence_by_lane[record.lane].add(state.now - record.arrived)
        state.outcomes.append(outcome)
    if state.simple_calls:
        return
    if state.failing_keys is not None:
        state.failing_keys.succeeded(record.key)
    if ticket.followers is not None and state.single_flight is not None:
        state.single_flight.store(ticket.request, result)
        for follower in state.single_flight.complete(ticket):
            state.following -= 1
            succeed(state, follower, result)
            release(state, follower.queue)


def fail(state: SchedulerState, ticket: Ticket, error: Exception) -> None:
    """End a record and its followers with an error, as ``on_error`` says.

    With ``on_error="fail"`` the run aborts and the record goes back to its queue.
    """
    policy = state.failure_policy
    error = policy.final(ticket, error)
    if state.options.on_error == "fail":
        ticket.queue.put_back([ticket])
        if not state.stopped:
            state.stopped = True
            state.instructions.append(Abort(policy.abort_error(ticket, error)))
        return
    state.counters.failed += 1
    key = ticket.record.key
    counts = key is not None and not isinstance(error, Quarantined | BadKey | BadLane)
    if state.failing_keys is not None and counts:
        state.failing_keys.failed(key, state.now)
    _emit(state, Outcome(ticket.record, None, error, ticket.attempt))
    if ticket.followers is not None and state.single_flight is not None:
        for follower in state.single_flight.complete(ticket):
            state.following -= 1
            if isinstance(error, Quarantined):  # no call was made: the follower makes its own
                follower.queue.put_back([follower])
            else:
                fail(state, follower, policy.for_follower(follower, error))
            release(state, follower.queue)


def _emit(state: SchedulerState, outcome: Outcome) -> None:
    """Emit an outcome, and those that waited for it, once the emit order allows it."""
    for released in state.emission.release(outcome):
        record = released.record
        state.residence.add(state.now - record.arrived)
        # a record rejected with `BadLane` has no lane
        if state.several_lanes and 0 <= record.lane < len(state.residence_by_lane):
            state.residence_by_lane[record.lane].add(state.now - record.arrived)
        if released.error is not None and state.options.on_error == "drop":
            state.counters.dropped += 1
            state.emission.finish([record])
        else:
            state.outcomes.append(released)
