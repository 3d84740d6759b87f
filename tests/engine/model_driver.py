"""Drives a scheduler by hand: no loop, no clock, no calls.

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
    Answered,
    Arrived,
    Cancel,
    Delivered,
    Drain,
    Drained,
    Emit,
    Event,
    Failed,
    GiveBack,
    Gone,
    Instruction,
    Pull,
    Start,
    Succeeded,
    Tick,
    WakeAt,
)
from thulawa.engine.model import Outcome, Record, Ticket
from thulawa.engine.options import Options
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.state import Memory


@dataclass(frozen=True, eq=False)
class Call:
    """A call that was started: who shares it, and when."""

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
    """One event, and all that came of it."""

    event: Event
    now: float
    arrived: list[Record] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)
    emitted: list[Outcome] = field(default_factory=list)
    delivered: list[Outcome] = field(default_factory=list)
    started: list[Call] = field(default_factory=list)
    given_back: list[Record] = field(default_factory=list)
    pull: Pull | None = None


class Rule(Protocol):
    """Something that must hold; told before and after every step."""

    def before(self, event: Event) -> None: ...

    def after(self, step: Step) -> None: ...


class Drive:
    """A scheduler, the world around it, and the rules that watch both."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        cache: MutableMapping[Hashable, Any] | None = None,
        memory: Memory | None = None,
        seed: int = 0,
        validate: bool = True,
    ) -> None:
        self.options = options or Options()
        self.scheduler = Scheduler(self.options, memory=memory, cache=cache, random=Random(seed))
        self.rules: list[Rule] = []
        self.now = 0.0
        self.running: dict[Ticket, Call] = {}
        self.unwinding: dict[Ticket, Call] = {}
        self.over: deque[Call] = deque(maxlen=20)
        self.outbox: deque[Outcome] = deque()
        self.emitted: list[Outcome] = []
        self.given_back: list[Record] = []
        self.pull: Pull | None = None
        self.wake: float | None = None
        self.aborted: Exception | None = None
        self.drained = False
        self.cancelled = False
        self.sound = True
        self._validate = validate

    def begin(self) -> "Drive":
        self.tell(Tick())
        return self

    # --- what happens

    def arrive(self, *records: Record) -> Step:
        """Answer the outstanding pull."""
        assert self.pull is not None, "nothing was asked for"
        self.pull = None
        return self.tell(Arrived(records))

    def succeed(self, *calls: Call | int, result: Any = "ok") -> Step:
        """Have calls over one record each return."""
        ends = [End(self.call(call), [result]) for call in calls]
        answers = [(end.call.lead, end.call.attempt, result) for end in ends]
        return self._end(Succeeded(answers), ends)

    def answer(self, call: Call | int, results: Any) -> Step:
        """Have a call over a batch return."""
        call = self.call(call)
        return self._end(Answered(call.lead, call.attempt, results), [End(call, results)])

    def fail(self, call: Call | int, error: Exception) -> Step:
        """Have a call raise."""
        call = self.call(call)
        return self._end(Failed(call.lead, call.attempt, error), [End(call, error=error)])

    def answer_late(self, call: Call, result: Any = "too late") -> Step:
        """Have a call return, or raise, that was abandoned or has returned already."""
        assert self.running.get(call.lead) is not call, "it is still awaited"
        if self.unwinding.get(call.lead) is call:
            del self.unwinding[call.lead]
            self.over.append(call)
        if isinstance(result, Exception):
            return self.tell(Failed(call.lead, call.attempt, result))
        if self.options.batch is not None:
            return self.tell(Answered(call.lead, call.attempt, [result for _ in call.tickets]))
        return self.tell(Succeeded([(call.lead, call.attempt, result)]))

    def gone(self, call: Call | int) -> Step:
        """Have a call that was abandoned come to its end."""
        if isinstance(call, int):
            call = next(each for each in self.unwinding.values() if call in each.offsets)
        del self.unwinding[call.lead]
        self.over.append(call)
        return self.tell(Gone(call.lead, call.attempt))

    def give_way(self) -> None:
        """Have all calls that were abandoned come to their end."""
        for call in list(self.unwinding.values()):
            self.gone(call)

    def deliver(self, count: int | None = None) -> Step:
        """Report outcomes delivered, all of them unless told otherwise."""
        return self.tell(Delivered(len(self.outbox) if count is None else count))

    def drain(self) -> Step:
        return self.tell(Drain())

    def cancel(self) -> Step:
        self.cancelled = True
        return self.tell(Cancel())

    def tick(self, late: float = 0.0) -> Step:
        """Jump to the time the scheduler wants to be woken at."""
        assert self.wake is not None, "nothing is waited for"
        self.now = max(self.now, self.wake) + late
        self.wake = None
        return self.tell(Tick())

    def sleep(self, seconds: float, *, stubborn: bool = False) -> None:
        """Let time pass, waking the scheduler when it asked for it; calls stop when told to."""
        until = self.now + seconds
        while self.wake is not None and self.wake <= until:
            self.tick()
            if not stubborn:
                self.give_way()
        self.now = max(self.now, until)

    # --- what can be seen

    def call(self, call: Call | int) -> Call:
        """Find the running call of an offset."""
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
        """Give the types of the errors that were emitted, by offset."""
        return {o.record.offset: type(o.error) for o in self.emitted if o.error is not None}

    def wanted(self) -> tuple[int, int]:
        """Give how many records and bytes are asked for; none while intake is closed."""
        return (0, 0) if self.pull is None else (self.pull.records, self.pull.bytes)

    def may_go_on(self) -> bool:
        """Tell whether anything is under way that will lead to an event."""
        under_way = self.running or self.unwinding or self.outbox or self.pull
        return bool(under_way) or self.wake is not None

    # --- carrying out

    def _end(self, event: Event, ends: list[End]) -> Step:
        for end in ends:
            assert self.running.pop(end.call.lead) is end.call
            self.over.append(end.call)
        return self.tell(event, ends)

    def tell(self, event: Event, ends: Iterable[End] = ()) -> Step:
        """Hand an event in, carry out what comes out, and check."""
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
                assert self.pull is None, "asked twice"
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
                self.unwinding[ticket] = call
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
            case GiveBack(records=records):
                self.given_back += records
                step.given_back += records
            case Drained():
                assert not self.drained, "drained twice"
                self.drained = True


def records(keys: str, *, first: int = 0, **fields: Any) -> list[Record]:
    """Make one record per letter, its key; ``-`` is unkeyed. Timestamps follow offsets."""
    return [
        Record(offset, None if key == "-" else key, timestamp=offset, **fields)
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
