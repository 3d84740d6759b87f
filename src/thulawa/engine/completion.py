"""A call ends: it returned, it raised, or it timed out.

A call that times out is abandoned: its records are settled at once, but it may run on for a
while, so it keeps its permit and its keys until the driver reports that it has stopped.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import inf
from typing import Any

from thulawa.engine.events import Abandon, BatchReturned, Failed, Succeeded
from thulawa.engine.limits import Verdict
from thulawa.engine.outcomes import (
    continue_keys,
    fail,
    park,
    plan_batch_retry,
    release,
    settle,
    succeed,
)
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import ABANDONED, RetryPlan, SchedulerState
from thulawa.engine.work_items import Outcome, Ticket
from thulawa.errors import AttemptTimedOut, DeadlineExceeded, Overload, SelfCancelled, WrongResult


def on_succeeded(state: SchedulerState, event: Succeeded) -> None:
    """Complete calls over one record each that returned."""
    if state.simple_completion:
        _complete_in_bulk(state, event.results)
        return
    calls = state.calls
    for ticket, attempt, result in event.results:
        if calls.get(ticket) != attempt:
            call_stopped(state, ticket, attempt)
            continue
        _observe(state, ticket, "success")
        free_permit(state, ticket)
        succeed(state, ticket, result)
        release(state, ticket.queue)


def _complete_in_bulk(state: SchedulerState, results: Sequence[tuple[Ticket, int, Any]]) -> None:
    """Do the same where a call has nothing to observe, share or reorder.

    One loop without function calls, for most events are these (figures in docs/adr/0010).
    """
    calls, queues, now, timed = state.calls, state.queues, state.now, state.timed
    emit = state.outcomes.append
    freed: list[KeyQueue] = []
    started, arrived, count = 0.0, 0.0, 0  # calls with equal times are measured together
    for ticket, attempt, result in results:
        if calls.get(ticket) != attempt:
            call_stopped(state, ticket, attempt)
            continue
        del calls[ticket]
        if timed and ticket.timer is not None:
            state.timers.cancel(ticket.timer)
            ticket.timer = None
        record, queue = ticket.record, ticket.queue
        if ticket.started == started and record.arrived == arrived:
            count += 1
        else:
            _measure(state, now - started, now - arrived, count)
            started, arrived, count = ticket.started, record.arrived, 1
        emit(Outcome(record, result, None, attempt))
        queue.active = 0
        if queue.head is None and not queue.retries:
            del queues[queue.key]
        else:
            freed.append(queue)
    _measure(state, now - started, now - arrived, count)
    state.counters.succeeded += len(state.outcomes)
    if freed and not state.stopped:
        state.ready.add_all(freed)


def _measure(state: SchedulerState, latency: float, residence: float, calls: int) -> None:
    if calls:
        state.latency.add_all(latency, calls)
        state.residence.add_all(residence, calls)


def on_failed(state: SchedulerState, event: Failed) -> None:
    """Settle a call that raised."""
    if state.calls.get(event.ticket) != event.attempt:
        call_stopped(state, event.ticket, event.attempt)
        return
    plan = _settle_error(state, event.ticket, event.error)
    free_permit(state, event.ticket)
    continue_keys(state, plan)


def on_batch_returned(state: SchedulerState, event: BatchReturned) -> None:
    """Settle a call over a batch that returned."""
    lead = event.ticket
    if state.calls.get(lead) != event.attempt:
        call_stopped(state, lead, event.attempt)
        return
    members, results = lead.members(), event.results
    problem = _mismatch(results, len(members))
    if problem is not None:
        results = [WrongResult(problem) for _ in members]
    results = [_as_error(result) for result in results]
    overloads = [error for error in results if isinstance(error, Overload)]
    failed = any(isinstance(result, Exception) for result in results)
    _observe(state, lead, "overload" if overloads else "failure" if failed else "success")
    free_permit(state, lead)
    for overload in overloads:
        _overloaded(state, overload)
    continue_keys(state, settle(state, members, results))


def call_stopped(state: SchedulerState, lead: Ticket, attempt: int) -> None:
    """Continue with the keys of an abandoned call that runs no more."""
    if lead.attempt != attempt or lead not in state.abandoned:
        return  # reported before
    plan = state.abandoned.pop(lead)
    free_permit(state, lead)
    for queue, retry in plan.items():
        if retry is None:
            release(state, queue)
        else:
            park(state, queue, *retry)


def call_timed_out(state: SchedulerState, lead: Ticket) -> None:
    """Abandon a call at its timeout, or at the deadline of one of its records."""
    lead.timer = None
    state.counters.timeouts += 1
    state.instructions.append(Abandon(lead, lead.attempt))
    members = lead.members()
    late = [state.failure_policy.deadline(ticket) <= state.now for ticket in members]
    slow = f"no answer after {state.now - lead.started:.3g} s"
    if not any(late):
        _hold(state, lead, _settle_error(state, lead, AttemptTimedOut(slow)))
        return
    _observe(state, lead, "overload")
    timeout = state.options.timeout
    results: list[Exception] = []
    for over in late:
        if over:
            ended = f"no answer by the deadline of {state.options.deadline} s"
            results.append(DeadlineExceeded(ended))
        elif timeout is not None and state.now >= lead.started + timeout:
            results.append(AttemptTimedOut(slow))
        else:  # `Overload`, because it does not count as a failure of this record
            results.append(Overload("the call was ended by the deadline of another record"))
    _hold(state, lead, settle(state, members, results))


def _hold(state: SchedulerState, lead: Ticket, plan: RetryPlan) -> None:
    """Keep the permit and the keys of an abandoned call until it has stopped."""
    state.calls[lead] = ABANDONED
    state.abandoned[lead] = plan
    for queue, retry in plan.items():
        queue.active = 1
        if retry is not None:
            queue.put_back(retry[0])
    _set_deadline_timer(state, lead)


def _set_deadline_timer(state: SchedulerState, lead: Ticket) -> None:
    """Set a timer for the earliest deadline among the retries that wait for an abandoned call."""
    heads = [retry[0][0] for retry in state.abandoned[lead].values() if retry is not None]
    when = min(map(state.failure_policy.deadline, heads), default=inf)
    if when < inf:
        lead.timer = state.timers.add(when, _retries_expired, lead)


def _retries_expired(state: SchedulerState, lead: Ticket) -> None:
    """Fail retries whose deadline passed before their abandoned call stopped."""
    lead.timer = None
    plan = state.abandoned[lead]
    deadline, now = state.failure_policy.deadline, state.now
    ended = f"its call did not stop by the deadline of {state.options.deadline} s"
    for queue, retry in plan.items():
        tickets, when = retry or ([], inf)
        late = list(takewhile(lambda ticket: deadline(ticket) <= now, tickets))
        for _ in late:
            fail(state, queue.pop(), DeadlineExceeded(ended))
        rest = tickets[len(late) :]
        plan[queue] = (rest, when) if rest else None
    if not state.stopped:
        _set_deadline_timer(state, lead)


def _observe(state: SchedulerState, lead: Ticket, verdict: Verdict) -> None:
    """Report a finished call, which still has its permit, to the limit and the batch size."""
    latency = state.now - lead.started
    state.latency.add(latency)
    if state.adaptive:
        state.limit.observe(latency, verdict, len(state.calls), state.now)
    if lead.batch is not None:
        if verdict == "success" and state.batch_size is not None:
            state.batch_size.observe(len(lead.batch), latency)
        lead.batch = None


def free_permit(state: SchedulerState, lead: Ticket) -> None:
    """Free the permit of a call, and cancel its timer."""
    del state.calls[lead]
    if lead.timer is not None:
        state.timers.cancel(lead.timer)
        lead.timer = None
    if state.several_lanes:
        state.ready.finished(lead.record.lane)


def _settle_error(state: SchedulerState, lead: Ticket, error: Exception) -> RetryPlan:
    """Settle all records of a call that raised."""
    members = lead.members()
    _observe(state, lead, verdict_of(error))
    if isinstance(error, Overload):
        _overloaded(state, error)
    if len(members) == 1 or isinstance(error, Overload):
        return settle(state, members, [error] * len(members))
    return plan_batch_retry(state, members, error)


def verdict_of(error: Exception) -> Verdict:
    """Return how the concurrency limit is to count this error."""
    return "overload" if isinstance(error, Overload | TimeoutError) else "failure"


def _overloaded(state: SchedulerState, error: Overload) -> None:
    """Start no call before the server's Retry-After has passed."""
    state.counters.overloads += 1
    if error.retry_after:
        state.rate_limited = state.start_extras = True
        state.bucket.close_until(state.now + error.retry_after)


def _as_error(result: Any) -> Any:
    """Return the result; a BaseException, which ``except Exception`` misses, is wrapped."""
    if not isinstance(result, BaseException) or isinstance(result, Exception):
        return result
    error = SelfCancelled(f"a record's result was {type(result).__name__}")
    error.__cause__ = result
    return error


def _mismatch(results: object, wanted: int) -> str | None:
    """Return what is wrong with the results of a batch, or None."""
    if not isinstance(results, list | tuple):
        return f"a batch function must return a list, not {type(results).__name__}"
    if len(results) != wanted:
        return f"a batch of {wanted} records got {len(results)} results"
    return None
