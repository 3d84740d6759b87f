"""The engine as a state machine without I/O: ``handle(event, now) -> instructions``.

It reads no clock, starts nothing and waits for nothing: a driver carries out its instructions and
reports what happened. After the model of dask.distributed's worker state machine.

The life of a record: it *arrives* and waits in its key's queue; when its key is ready and a
permit is free it becomes *active* with a ticket, and a call *starts*; the call ends and the
result is final, or the ticket is *parked* at the head of its key until its retry is due; a final
result is *emitted*, through a reorder buffer where the emit order asks for one; the record is
finished once its outcome is *delivered*. A permit is reserved before a record leaves its queue,
and a key is released only when the result of its record is final.

Cost: O(log ready keys) per record. Nothing is searched for, and nothing polls.
"""

from collections.abc import Callable, Hashable, MutableMapping
from operator import attrgetter
from random import Random
from typing import Any

from thulawa.engine import events
from thulawa.engine.completion import call_stopped, on_batch_returned, on_failed, on_succeeded
from thulawa.engine.dispatch import dispatch, undo_starts
from thulawa.engine.events import Event, Instruction
from thulawa.engine.invariants import check_invariants
from thulawa.engine.options import Options
from thulawa.engine.outcomes import fail, grow_batch, make_ready, release, stop_lingering
from thulawa.engine.queues import KeyQueue
from thulawa.engine.state import LearnedState, SchedulerState
from thulawa.engine.statistics import Statistics, snapshot
from thulawa.engine.work_items import Outcome, Ticket, WorkItem
from thulawa.errors import BadKey, BadLane

_FOLD = 4_096


class Scheduler:
    """Decides which records run when, and when their results are emitted."""

    __slots__ = ("state",)

    def __init__(
        self,
        options: Options,
        *,
        learned: LearnedState | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        random: Random | None = None,
    ) -> None:
        random = random or Random(0)
        learned = learned or LearnedState(options, random)
        self.state = SchedulerState(options, learned, cache, random)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Update the state by an event; return what the driver is to do."""
        state = self.state
        if now > state.now:
            state.now = state.ready.now = now
        starts: list[Ticket] = []
        outcomes: list[Outcome] = []
        instructions: list[Instruction] = []
        state.starts, state.outcomes, state.instructions = starts, outcomes, instructions
        kind = type(event)
        if not state.cancelled or kind is events.Arrived:
            _HANDLERS[kind](state, event)
        if not state.stopped:
            if state.ready.count:
                dispatch(state)
            # a success frees room, as a rule, only once its outcome is delivered
            if kind is not events.Succeeded or not outcomes:
                _pull(state)
            _announce(state)
        if state.stopped and starts:
            undo_starts(state, starts)
            starts = []
        if outcomes:
            state.emission.undelivered.extend(outcomes)
            instructions.append(events.Emit(outcomes))
        if starts:
            instructions.append(events.Start(starts))
        return instructions

    def statistics(self, now: float | None = None) -> Statistics:
        """Return a snapshot at ``now``, by default at the time of the last event."""
        return snapshot(self.state, self.state.now if now is None else now)

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold; for tests."""
        check_invariants(self.state, self.unfinished())

    def unfinished(self) -> list[WorkItem]:
        """Return the records that arrived and are not finished, by offset."""
        state = self.state
        records = [record for queue in state.queues.values() for record in queue.records()]
        records += [ticket.record for lead in state.running() for ticket in lead.members()]
        if state.single_flight is not None:
            records += [ticket.record for ticket in state.single_flight.followers()]
        records += state.emission.unfinished()
        return sorted(records, key=attrgetter("offset"))

    @property
    def stuck(self) -> bool:
        """Whether no record can make progress until an abandoned call stops."""
        state = self.state
        if not state.abandoned or len(state.calls) > len(state.abandoned):
            return False
        if state.emission.undelivered or len(state.timers):
            return False
        held = len(state.emission.frontier.unfinished) > 0
        if state.draining:
            return held
        return not state.pull_pending or (held and len(state.calls) >= state.limit.permits)


def _on_arrived(state: SchedulerState, event: events.Arrived) -> None:
    state.pull_pending = False
    records = event.records
    if state.stopped:
        state.instructions.append(events.ReturnUnfinished(list(records)))
        return
    state.emission.frontier.expect(records)
    state.backpressure.records += len(records)
    state.backpressure.bytes += sum([record.size for record in records])
    state.counters.arrived += len(records)
    _fold_histograms(state)
    now, queues, key_of, add_ready = state.now, state.queues, state.key_of, state.ready.add
    plain_types, reorders = key_of.plain_types, state.emission.reorders
    batched = state.batch_size is not None
    for record in records:
        record.arrived = now
        key = record.key
        if type(key) not in plain_types or record.lane or reorders:
            try:
                if reorders:
                    state.emission.expect(record)
                key = key_of(record)
            except (BadKey, BadLane) as error:
                _reject(state, record, error)
                continue
        queue = queues.get(key)
        if queue is None:
            queues[key] = queue = KeyQueue(key, record)
            if batched:
                make_ready(state, queue)
            else:
                add_ready(queue)
            continue
        rest = queue.rest
        if rest:
            rest.append(record)
        else:
            queue.append(record)
        if batched:
            grow_batch(state, queue)


def _reject(state: SchedulerState, record: WorkItem, error: BadKey | BadLane) -> None:
    """Fail a record that belongs in no queue."""
    error.node = state.options.name
    state.queues[record] = queue = KeyQueue(record, record)
    fail(state, queue.pop(), error)
    release(state, queue)


def _on_tick(state: SchedulerState, _: events.Tick) -> None:
    state.wake_at = float("inf")
    _fold_histograms(state)
    for action, subject in state.timers.due(state.now):
        action(state, subject)


def _on_drain(state: SchedulerState, _: events.Drain) -> None:
    state.draining = True
    for queue in list(state.queues.values()):
        if queue.linger is not None:
            stop_lingering(state, queue)


def _on_cancel(state: SchedulerState, _: events.Cancel) -> None:
    state.instructions.extend(events.Abandon(lead, lead.attempt) for lead in state.running())
    state.instructions.append(
        events.ReturnUnfinished(list(state.emission.frontier.unfinished.values()))
    )
    state.stopped = state.cancelled = True


_HANDLERS: dict[type, Callable[[SchedulerState, Any], None]] = {
    events.Arrived: _on_arrived,
    events.Succeeded: on_succeeded,
    events.BatchReturned: on_batch_returned,
    events.Failed: on_failed,
    events.CallStopped: lambda state, event: call_stopped(state, event.ticket, event.attempt),
    events.Delivered: lambda state, event: state.emission.delivered(event.count),
    events.Tick: _on_tick,
    events.Drain: _on_drain,
    events.Cancel: _on_cancel,
}


def _pull(state: SchedulerState) -> None:
    """Ask for more records if intake is open and no request is pending."""
    if state.pull_pending or state.draining:
        return
    records, size = state.backpressure.room(state.tracked_keys())
    if records > 0:
        state.pull_pending = True
        state.instructions.append(events.Pull(records, size))


def _announce(state: SchedulerState) -> None:
    """Instruct the driver once the run is drained, and when a `Tick` is needed earlier."""
    if state.draining and not state.drained and not len(state.emission.frontier.unfinished):
        state.drained = True
        state.instructions.append(events.Drained())
    when = state.timers.next()
    if when is not None and when < state.wake_at:
        state.wake_at = when
        state.instructions.append(events.WakeAt(when))


def _fold_histograms(state: SchedulerState) -> None:
    """Keep the histograms small: they grow only while records arrive or timers fire."""
    state.latency.fold(_FOLD)
    state.residence.fold(_FOLD)
    if state.several_lanes:
        for histogram in state.residence_by_lane:
            histogram.fold(_FOLD // 4)  # one for each lane
