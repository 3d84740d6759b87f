"""A record is final, or parked until its retry is due, and its key becomes ready again.

A key is released only when the result of its record is final. A final record is emitted as soon as
the emit order allows it, and its followers (single flight) get the same result. Of a batch, each
key's records before the first one to be retried are final. That one and those after it are parked
together at the head of their key's queue, so the key keeps its order.
"""

from collections.abc import Sequence
from typing import Any

from thulawa.engine.events import Abort
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import RetryPlan, SchedulerState
from thulawa.engine.work_items import Outcome, Ticket
from thulawa.errors import BadKey, BadLane, Quarantined


def make_ready(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a key ready that has a record at its head and no active ticket.

    With ``Batch.linger`` its batch may wait to be filled first; retries do not wait.
    """
    if state.linger:
        if state.across_keys:
            if queue.retries:
                state.batch_due = state.now
            elif not state.ready.count:
                state.batch_due = state.now + state.linger
        elif not (state.draining or queue.retries or len(queue) >= state.max_batch()):
            queue.linger = state.timers.add(state.now + state.linger, _linger_over, queue)
            return
    if state.across_keys:
        state.ready_records += len(queue)
    state.ready.add(queue)


def grow_batch(state: SchedulerState, queue: KeyQueue) -> None:
    """Account for a record added to a queue, where calls are over batches."""
    if queue.stamp:
        state.ready_records += state.across_keys
    elif queue.linger is not None and len(queue) >= state.max_batch():
        stop_lingering(state, queue)


def stop_lingering(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a lingering key ready before its time."""
    assert queue.linger is not None
    state.timers.cancel(queue.linger)
    _linger_over(state, queue)


def _linger_over(state: SchedulerState, queue: KeyQueue) -> None:
    queue.linger = None
    state.ready.add(queue)


def release(state: SchedulerState, queue: KeyQueue) -> None:
    """Make a key ready again, or forget it if it has no records, once no ticket is active."""
    queue.active = 0
    if queue.head is None and not queue.retries:
        del state.queues[queue.key]
    elif not state.stopped:
        if state.batch_size is None:  # the common case, without another function call
            state.ready.add(queue)
        else:
            make_ready(state, queue)


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


def settle(state: SchedulerState, members: list[Ticket], results: Sequence[Any]) -> RetryPlan:
    """Complete the records of a call that are final; return the plan for the others."""
    plan: RetryPlan = {}
    for ticket, result in zip(members, results, strict=True):
        retry = plan.setdefault(ticket.queue, None)
        if state.stopped:
            ticket.queue.put_back([ticket])
        elif retry is not None:
            retry[0].append(ticket)
        elif not isinstance(result, Exception):
            succeed(state, ticket, result)
        elif (when := state.failure_policy.retry_at(ticket, result, state.now)) is None:
            fail(state, ticket, result)
        else:
            plan[ticket.queue] = ([ticket], when)
    return plan


def plan_batch_retry(state: SchedulerState, members: list[Ticket], error: Exception) -> RetryPlan:
    """Return the plan for a batch that raised as a whole.

    It is not known which record is at fault: all are retried together while attempts are left,
    and then one by one, each with all its attempts.
    """
    times = [state.failure_policy.retry_at(ticket, error, state.now) for ticket in members]
    when = state.now
    if None in times:
        for ticket in members:
            ticket.solo = True
            ticket.failures = 0
    else:
        when = max(when for when in times if when is not None)
    groups: dict[KeyQueue, list[Ticket]] = {}
    for ticket in members:
        groups.setdefault(ticket.queue, []).append(ticket)
    return {queue: (group, when) for queue, group in groups.items()}


def continue_keys(state: SchedulerState, plan: RetryPlan) -> None:
    """Release or park the keys of a call that has ended."""
    for queue, retry in plan.items():
        if retry is None:
            release(state, queue)
        else:
            queue.put_back(retry[0])
            park(state, queue, *retry)


def park(state: SchedulerState, queue: KeyQueue, tickets: list[Ticket], when: float) -> None:
    """Keep a key, with these tickets at its head, from being ready until ``when``."""
    queue.active = 0
    queue.parked = len(tickets)
    state.counters.retries += len(tickets)
    state.backpressure.park(len(tickets), queue.parked_bytes(), 1)
    state.timers.add(when, _unpark, queue)


def _unpark(state: SchedulerState, queue: KeyQueue) -> None:
    """Requeue a parked key whose retry is due."""
    state.backpressure.park(-queue.parked, -queue.parked_bytes(), -1)
    queue.parked = 0
    make_ready(state, queue)
