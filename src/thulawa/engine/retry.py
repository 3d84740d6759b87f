"""Records of a call that ended: each is final, or parked until its retry is due.

Of a batch, each key's records before the first one to be retried are final. That one and those
after it are parked together at the head of their key's queue, so the key keeps its order.
"""

from collections.abc import Sequence
from typing import Any

from thulawa.engine.outcomes import fail, succeed
from thulawa.engine.queues import KeyQueue
from thulawa.engine.readiness import make_ready, release
from thulawa.engine.state import RetryPlan, SchedulerState
from thulawa.engine.work_items import Ticket


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
    state.backpressure.park(len(tickets), queue.parked_bytes())
    state.timers.add(when, _unpark, queue)


def _unpark(state: SchedulerState, queue: KeyQueue) -> None:
    """Requeue a parked key whose retry is due."""
    state.backpressure.unpark(queue.parked, queue.parked_bytes())
    queue.parked = 0
    make_ready(state, queue)
