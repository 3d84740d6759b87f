"""Drive a scheduler by hand: no loop, no clock, no calls.

`Drive` carries out the instructions and remembers what is under way; the scheduler checks
itself with ``validate()`` after every step. Tests say what happens next: records arrive, a call
ends, outcomes are delivered, time passes. Rules that watch a run (`model_rules`) are told of
every step as `Step`.
"""

from collections import deque
from collections.abc import Hashable, Iterable, MutableMapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from thulawa.engine.events import (
    Abandon,
    Abort,
    Arrived,
    BatchReturned,
    CallStopped,
    Cancel,
    Delivered,
    Drain,
    Drained,
    Emit,
    Event,
    Failed,
    Instruction,
    Pull,
    ReturnUnfinished,
    Start,
    Succeeded,
    Tick,
    WakeAt,
)
from thulawa.engine.options import Options
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.state import LearnedState
from thulawa.engine.work_items import Outcome, Ticket, WorkItem


@dataclass(frozen=True, eq=False)
class Call:
    """A call that was started: its tickets, and when."""

    lead: Ticket
    attempt: int
    tickets: tuple[Ticket, ...]
    at: float

    @property
    def offsets(self) -> list[int]:
        return [ticket.record.offset for ticket in self.tickets]


@dataclass(frozen=True, eq=False)
class End:
    """A call that ended: with results of its records, with an error, or abandoned."""

    call: Call
    results: Any = None
    error: Exception | None = None
    abandoned: bool = False


@dataclass(eq=False)
class Step:
    """One event, and all its effects."""

    event: Event
    now: float
    arrived: list[WorkItem] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)
    emitted: list[Outcome] = field(default_factory=list)
    delivered: list[Outcome] = field(default_factory=list)
    started: list[Call] = field(default_factory=list)
    returned: list[WorkItem] = field(default_factory=list)
    pull: Pull | None = None


class Rule(Protocol):
    """A condition that must hold; called before and after every step."""

    def before(self, event: Event) -> None: ...

    def after(self, step: Step) -> None: ...


class Drive:
    """A scheduler, its environment, and the rules that check both."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        cache: MutableMapping[Hashable, Any] | None = None,
        learned: LearnedState | None = None,
        seed: int = 0,
        validate: bool = True,
    ) -> None:
        self.options = options or Options()
        self.scheduler = Scheduler(self.options, learned=learned, cache=cache, random=Random(seed))
        self.rules: list[Rule] = []
        self.now = 0.0
        self.running: dict[Ticket, Call] = {}
        self.abandoned: dict[Ticket, Call] = {}
        self.over: deque[Call] = deque(maxlen=20)
        self.outbox: deque[Outcome] = deque()
        self.emitted: list[Outcome] = []
        self.returned: list[WorkItem] = []
        self.pull: Pull | None = None
        self.wake: float | None = None
        self.aborted: Exception | None = None
        self.drained = False
        self.cancelled = False
        self.sound = True
        self._validate = validate

    def begin(self) -> "Drive":
        self.handle(Tick())
        return self

    # --- events

    def arrive(self, *records: WorkItem) -> Step:
        """Answer the outstanding pull."""
        assert self.pull is not None, "nothing was pulled"
        self.pull = None
        return self.handle(Arrived(records))

    def succeed(self, *calls: Call | int, result: Any = "ok") -> Step:
        """Report that calls over one record each returned."""
        ends = [End(self.call(call), [result]) for call in calls]
        results = [(end.call.lead, end.call.attempt, result) for end in ends]
        return self._end(Succeeded(results), ends)

    def return_batch(self, call: Call | int, results: Any) -> Step:
        """Report that a call over a batch returned."""
        call = self.call(call)
        return self._end(BatchReturned(call.lead, call.attempt, results), [End(call, results)])

    def fail(self, call: Call | int, error: Exception) -> Step:
        """Report that a call raised."""
        call = self.call(call)
        return self._end(Failed(call.lead, call.attempt, error), [End(call, error=error)])

    def return_late(self, call: Call, result: Any = "too late") -> Step:
        """Report a result or error of a call that was abandoned or has ended already."""
        assert self.running.get(call.lead) is not call, "it is still running"
        if self.abandoned.get(call.lead) is call:
            del self.abandoned[call.lead]
            self.over.append(call)
        if isinstance(result, Exception):
            return self.handle(Failed(call.lead, call.attempt, result))
        if self.options.batch is not None:
            return self.handle(
                BatchReturned(call.lead, call.attempt, [result for _ in call.tickets])
            )
        return self.handle(Succeeded([(call.lead, call.attempt, result)]))

    def stop_call(self, call: Call | int) -> Step:
        """Report that an abandoned call has stopped."""
        if isinstance(call, int):
            call = next(each for each in self.abandoned.values() if call in each.offsets)
        del self.abandoned[call.lead]
        self.over.append(call)
        return self.handle(CallStopped(call.lead, call.attempt))

    def stop_abandoned(self) -> None:
        """Report that all abandoned calls have stopped."""
        for call in list(self.abandoned.values()):
            self.stop_call(call)

    def deliver(self, count: int | None = None) -> Step:
        """Report outcomes as delivered, by default all."""
        return self.handle(Delivered(len(self.outbox) if count is None else count))

    def drain(self) -> Step:
        return self.handle(Drain())

    def cancel(self) -> Step:
        self.cancelled = True
        return self.handle(Cancel())

    def tick(self, late: float = 0.0) -> Step:
        """Advance to the time of the last `WakeAt`."""
        assert self.wake is not None, "no `WakeAt` was sent"
        self.now = max(self.now, self.wake) + late
        self.wake = None
        return self.handle(Tick())

    def sleep(self, seconds: float, *, stubborn: bool = False) -> None:
        """Advance the time, with a `Tick` at each `WakeAt`; abandoned calls stop at once."""
        until = self.now + seconds
        while self.wake is not None and self.wake <= until:
            self.tick()
            if not stubborn:
                self.stop_abandoned()
        self.now = max(self.now, until)

    # --- observations

    def call(self, call: Call | int) -> Call:
        """Return the running call of an offset."""
        if isinstance(call, Call):
            return call
        return next(running for running in self.running.values() if call in running.offsets)

    @property
    def in_flight(self) -> list[int]:
        """The offsets of the running calls, in the order of their starts."""
        return [offset for call in self.running.values() for offset in call.offsets]

    @property
    def outcomes(self) -> list[int]:
        """The offsets of what was emitted, in order."""
        return [outcome.record.offset for outcome in self.emitted]

    def errors(self) -> dict[int, type[Exception]]:
        """Return the types of the errors that were emitted, by offset."""
        return {o.record.offset: type(o.error) for o in self.emitted if o.error is not None}

    def wanted(self) -> tuple[int, int]:
        """Return how many records and bytes are pulled; zeros while intake is closed."""
        return (0, 0) if self.pull is None else (self.pull.records, self.pull.bytes)

    def has_next_event(self) -> bool:
        """Return whether anything in progress will lead to an event."""
        under_way = self.running or self.abandoned or self.outbox or self.pull
        return bool(under_way) or self.wake is not None

    # --- instructions

    def _end(self, event: Event, ends: list[End]) -> Step:
        for end in ends:
            assert self.running.pop(end.call.lead) is end.call
            self.over.append(end.call)
        return self.handle(event, ends)

    def handle(self, event: Event, ends: Iterable[End] = ()) -> Step:
        """Handle an event, carry out the instructions, and check the rules."""
        self.sound = False
        step = Step(event, self.now, ended=list(ends))
        if isinstance(event, Arrived):
            step.arrived = list(event.records)
        if isinstance(event, Delivered):
            step.delivered = [self.outbox.popleft() for _ in range(event.count)]
        for rule in self.rules:
            rule.before(event)
        for instruction in self.scheduler.handle(event, self.now):
            self._carry_out(instruction, step)
        if self._validate:
            self.scheduler.validate()
        for rule in self.rules:
            rule.after(step)
        self.sound = True
        return step

    def _carry_out(self, instruction: Instruction, step: Step) -> None:
        match instruction:
            case Pull():
                assert self.pull is None, "pulled twice"
                self.pull = step.pull = instruction
            case Start(tickets=leads):
                for lead in leads:
                    assert lead not in self.running, "started while it runs"
                    assert self.aborted is None, "started after the end"
                    call = Call(lead, lead.attempt, tuple(lead.members()), self.now)
                    self.running[lead] = call
                    step.started.append(call)
            case Abandon(ticket=ticket, attempt=attempt):
                call = self.running.pop(ticket)
                assert call.attempt == attempt
                self.abandoned[ticket] = call
                step.ended.append(End(call, abandoned=True))
            case Emit(outcomes=outcomes):
                self.emitted += outcomes
                self.outbox.extend(outcomes)
                step.emitted += outcomes
            case WakeAt(when=when):
                self.wake = when
            case Abort(error=error):
                assert self.aborted is None, "aborted twice"
                self.aborted = error
            case ReturnUnfinished(records=records):
                self.returned += records
                step.returned += records
            case Drained():
                assert not self.drained, "drained twice"
                self.drained = True


def records(keys: str, *, first: int = 0, **fields: Any) -> list[WorkItem]:
    """Return one record per letter, its key; ``-`` is unkeyed. Timestamps follow offsets."""
    return [
        WorkItem(offset, None if key == "-" else key, timestamp=offset, **fields)
        for offset, key in enumerate(keys, first)
    ]


def calls_by_lane(of: Drive) -> list[int]:
    return [lane.in_flight for lane in of.scheduler.statistics().lanes]


def drive(options: Options | None = None, keys: str = "", **world: Any) -> Drive:
    """Begin a run over one record per letter, its key; ``-`` is unkeyed."""
    begun = Drive(options, **world).begin()
    if keys:
        begun.arrive(*records(keys))
    return begun
