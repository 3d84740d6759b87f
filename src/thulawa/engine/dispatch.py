"""Calls start: which key is next, and which records need no call.

A permit is reserved before a record leaves its queue. A record needs no call if its key is in
quarantine, its deadline has passed, its result is cached, or an equal request is in flight. It is
then completed here, but only while no ticket of its key is active, so it never overtakes one.
"""

from thulawa.engine.completion import call_timed_out, free_permit
from thulawa.engine.outcomes import fail, make_ready, release, succeed
from thulawa.engine.queues import KeyQueue
from thulawa.engine.single_flight import MISSING, SingleFlightGroup
from thulawa.engine.state import SchedulerState
from thulawa.engine.work_items import Ticket, WorkItem
from thulawa.errors import DeadlineExceeded, Quarantined


def dispatch(state: SchedulerState) -> None:
    """Start all calls that may start now."""
    ready, calls, limit = state.ready, state.calls, state.limit
    if state.simple_calls and not (state.rate_limited or state.several_lanes):
        _start_in_bulk(state, limit.permits - len(calls))
        return
    while ready.count and len(calls) < limit.permits and not state.stopped:
        if state.rate_limited and not _rate_allows(state):
            return
        if state.batch_size is None:
            _start_one(state)
        elif not state.across_keys:
            _start_same_key(state)
        elif _batch_is_due(state):
            _start_across_keys(state)
        else:
            return


def undo_starts(state: SchedulerState, leads: list[Ticket]) -> None:
    """Undo starts that the driver has not seen, because the run failed in the same step."""
    for lead in reversed(leads):
        free_permit(state, lead)
        for ticket in reversed(lead.members()):
            ticket.attempt -= 1
            ticket.queue.active = 0
            ticket.queue.put_back([ticket])
        lead.batch = None


def _start(state: SchedulerState, leads: list[Ticket]) -> None:
    """Start the calls that these tickets lead."""
    now, calls, batched = state.now, state.calls, state.batch_size is not None
    for lead in leads:
        lead.started = now
        lead.attempt = attempt = lead.attempt + 1
        calls[lead] = attempt
        if batched and lead.batch is not None:
            for ticket in lead.batch[1:]:
                ticket.attempt += 1
    state.starts.extend(leads)
    if state.start_extras:
        for lead in leads:
            if state.rate_limited:
                state.bucket.take()
            if state.several_lanes:
                state.ready.started(lead.record.lane)
            if state.timed:
                _set_timer(state, lead)


def _set_timer(state: SchedulerState, lead: Ticket) -> None:
    """Set the timer of a call to its timeout or to the first deadline of its records."""
    now, members = state.now, lead.members()
    for ticket in members:
        if ticket.first_started < 0:
            ticket.first_started = now
    when = min(map(state.failure_policy.deadline, members))
    if state.options.timeout is not None:
        when = min(when, now + state.options.timeout)
    lead.timer = state.timers.add(when, call_timed_out, lead)


def _rate_allows(state: SchedulerState) -> bool:
    when = state.bucket.ready_at(state.now)
    if when <= state.now:
        return True
    if state.rate_timer is None:
        state.rate_timer = state.timers.add(when, _clear_timer, "rate_timer")
    return False


def _clear_timer(state: SchedulerState, name: str) -> None:
    """Clear a timer that is due; dispatch, which follows every event, does the rest."""
    setattr(state, name, None)


def _pop_ready(state: SchedulerState) -> KeyQueue:
    queue = state.ready.pop(state.limit.permits)
    if state.across_keys:
        state.ready_records -= len(queue)
    return queue


def _start_in_bulk(state: SchedulerState, free: int) -> None:
    """Start a call for each ready key, where a call needs nothing but a permit.

    In bulk, for most engines are of this kind (figures in docs/adr/0010).
    """
    if free > 0:
        leads = []
        for queue in state.ready.take(free):
            queue.active = 1
            if queue.retries:
                leads.append(queue.pop())
            else:  # `pop` inlined
                record, rest = queue.head, queue.rest
                assert record is not None
                queue.head = rest.popleft() if rest else None
                leads.append(Ticket(record, queue))
        _start(state, leads)


def _start_one(state: SchedulerState) -> None:
    tickets: list[Ticket] = []
    if _add_head(state, _pop_ready(state), tickets):
        _start(state, tickets)


def _start_same_key(state: SchedulerState) -> None:
    queue = _pop_ready(state)
    tickets: list[Ticket] = []
    size = state.max_batch()
    while len(tickets) < size and _add_head(state, queue, tickets):
        pass
    _start_batch(state, tickets)


def _batch_is_due(state: SchedulerState) -> bool:
    enough = state.ready_records >= state.max_batch()
    if enough or state.draining or state.now >= state.batch_due:
        return True
    if state.batch_timer is None:
        state.batch_timer = state.timers.add(state.batch_due, _clear_timer, "batch_timer")
    return False


def _start_across_keys(state: SchedulerState) -> None:
    """Start a batch of the heads of the oldest keys, then, if it is not full, more of each."""
    tickets: list[Ticket] = []
    size = state.max_batch()
    joined: list[KeyQueue] = []
    skipped: list[KeyQueue] = []
    while len(tickets) < size and state.ready.count:
        queue = _pop_ready(state)
        if tickets and not _may_join(queue, tickets):
            skipped.append(queue)
        elif _add_head(state, queue, tickets):
            joined.append(queue)
            if tickets[0].solo:
                break
    while joined and len(tickets) < size:
        joined = [q for q in joined if len(tickets) < size and _add_head(state, q, tickets)]
    for queue in skipped:
        make_ready(state, queue)
    _start_batch(state, tickets)


def _start_batch(state: SchedulerState, tickets: list[Ticket]) -> None:
    if tickets:
        tickets[0].batch = tickets
        _start(state, tickets[:1])


def _add_head(state: SchedulerState, queue: KeyQueue, tickets: list[Ticket]) -> bool:
    """Move the head of a key into the call being formed; return whether it joined it."""
    record = queue.next_record()
    if record is None or state.stopped or (tickets and not _may_join(queue, tickets)):
        return False
    error = _error_without_call(state, queue, record)
    if error is not None:
        _fail_head(state, queue, error)
        return False
    flight = state.single_flight
    ticket = queue.pop() if flight is None else _pop_leader(state, flight, queue, record)
    if ticket is None:
        return False
    queue.active += 1
    tickets.append(ticket)
    return True


def _error_without_call(
    state: SchedulerState, queue: KeyQueue, record: WorkItem
) -> Exception | None:
    """Return the error of a head in quarantine, or of a retry whose deadline has passed."""
    failing = state.failing_keys
    if failing is not None and record.key is not None and failing.blocked(record.key, state.now):
        return Quarantined("its key is in quarantine")
    if queue.retries and state.failure_policy.deadline(queue.retries[0]) <= state.now:
        late = f"the deadline of {state.options.deadline} s passed before another attempt"
        return DeadlineExceeded(late)
    return None


def _fail_head(state: SchedulerState, queue: KeyQueue, error: Exception) -> None:
    """Fail the head of a key without a call, unless a ticket before it is still active."""
    if not queue.active:
        fail(state, queue.pop(), error)
        release(state, queue)


def _pop_leader(
    state: SchedulerState, flight: SingleFlightGroup, queue: KeyQueue, record: WorkItem
) -> Ticket | None:
    """Remove the head of a key if it needs a call, and make it the leader of its request.

    Otherwise return None: its result is cached, or it follows an equal request in flight.
    """
    if queue.retries and queue.retries[0].followers is not None:
        return queue.pop()  # it leads already
    try:
        request = flight.request_of(record)
    except Exception as error:  # noqa: BLE001 the user's function may raise anything
        _fail_head(state, queue, error)
        return None
    cached, leader = flight.cached(request), flight.leaders.get(request)
    if cached is MISSING and leader is None:
        ticket = queue.pop()
        flight.lead(ticket, request)
        return ticket
    if queue.active:
        return None
    ticket = queue.pop()
    if leader is None:
        flight.hits += 1
        succeed(state, ticket, cached)
        release(state, queue)
    else:
        flight.follow(ticket, leader)
        state.following += 1
        queue.active = 1
    return None


def _may_join(queue: KeyQueue, tickets: list[Ticket]) -> bool:
    """Return whether the head of a key may join a call; a solo retry has a call of its own."""
    return not tickets[0].solo and not (queue.retries and queue.retries[0].solo)
