"""The asyncio driver: carries out what the scheduler says.

Four parts with one concern each, joined by the scheduler and by nothing else: *intake* asks
the source for records when the scheduler wants some; *workers* run the user's function;
*output* hands outcomes to the sink and reports them delivered; a *timer* wakes the scheduler.
A slow sink holds up nothing but itself until the bounds are reached, and then intake alone.

Nothing is reported finished before the sink has taken it. When a run fails or is cancelled,
the calls under way are cancelled, what is not finished is given back, and all of this ends
within ``patience`` seconds, whatever function, source and sink do; when cancelled while it
stops, at once.

A call that is told to stop keeps its key and its permit until it has: a warning names one that
has not within ``patience``, and when nothing else is left to wait for, the run fails.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from thulawa.core.errors import ThulawaError, WrongResult
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
    Pull,
    Start,
    Succeeded,
    Tick,
    WakeAt,
)
from thulawa.engine.model import Outcome, Record, Ticket
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.workers import Report, Workers

__all__ = ["Run", "Sink", "Source"]

_log = logging.getLogger("thulawa.engine")

_GIVING_WAY = 1.0  # seconds that a call has at least to stop in before a run is given up


class Source(Protocol):
    """Where records come from."""

    async def take(self, records: int, size: int) -> Sequence[Record]:
        """Give at least one and up to ``records`` records, in offset order; none: the end.

        Once their sizes add up to ``size`` no more should be added. When cancelled, take none.
        """


class Sink(Protocol):
    """Where outcomes go."""

    async def put(self, outcomes: list[Outcome]) -> None:
        """Take the outcomes; once it returns they count as safe."""


class Run:
    """One pass over a source. Make it inside a running event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Callable[[Report], Workers],
        source: Source,
        sink: Sink,
        *,
        patience: float = 5.0,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._source = source
        self._sink = sink
        self._patience = patience
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._workers = workers(self)
        self._batched = scheduler.options.batch is not None
        self._pull: asyncio.Future[Pull] = self._loop.create_future()
        self._outbox: list[Outcome] = []
        self._outbox_filled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reminders: dict[Ticket, asyncio.TimerHandle] = {}
        self._standstill: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._parts: list[asyncio.Task[None]] = []
        self._intake: asyncio.Task[None] | None = None
        self.given_back: list[Record] = []
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Start: self._start,
            Emit: self._emit,
            Pull: self._want,
            WakeAt: self._wake_at,
            Abandon: self._abandon,
            Drained: self._drained,
            Abort: self._abort,
        }

    async def go(self, *, drained: bool = False) -> None:
        """Process the source to its end, or raise what ended the run before."""
        self._intake = self._part(self._take_in, "intake")
        self._parts = [self._intake, self._part(self._put_out, "output")]
        self._tell(Tick())
        if drained:
            self.drain()
        try:
            await self._over
        finally:
            await self._stop()

    def now(self) -> float:
        """Tell the time that the scheduler is told."""
        return self._loop.time()

    async def _stop(self) -> None:
        patient_until = self._loop.time() + self._patience
        for timer in (self._timer, self._standstill, *self._reminders.values()):
            if timer is not None:
                timer.cancel()
        for task in self._parts:
            if not task.cancelling():  # else it is stopping already, and not to be disturbed
                task.cancel()
        try:
            strays = await self._workers.close(self._patience)
            patience = max(0.0, patient_until - self._loop.time())
            await asyncio.wait(self._parts, timeout=patience)
        finally:
            self._give_back_rest()
        if strays:
            _log.warning(
                "%s: %d calls did not stop within %g s and are left behind",
                self._scheduler.options.name,
                strays,
                self._patience,
            )
        else:  # with strays, nobody knows which ones are gone
            for lead in list(self._scheduler.abandoned):
                self._scheduler.handle(Gone(lead, lead.attempt), self._loop.time())

    def drain(self) -> None:
        """Take in nothing more; `go` returns when what was taken in is finished."""
        if self._intake is not None and not self._scheduler.draining:
            self._intake.cancel()
            self._tell(Drain())

    def keep(self, records: list[Record]) -> None:
        """Do not give back what turns out to be safe after all."""
        safe = set(map(id, records))  # what is given back need not be a record, nor hashable
        self.given_back = [record for record in self.given_back if id(record) not in safe]

    # --- from the workers

    def succeeded(self, answers: list[tuple[Ticket, int, Any]]) -> None:
        """Tell the scheduler of calls that returned."""
        if self._check is not None:
            answers = self._checked(answers, self._check)
        if not self._batched:
            self._tell(Succeeded(answers))
            return
        for ticket, attempt, results in answers:
            self._tell(Answered(ticket, attempt, results))

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Tell the scheduler of a call that raised."""
        self._tell(Failed(ticket, attempt, error))

    def gone(self, ticket: Ticket, attempt: int) -> None:
        """Tell the scheduler of a call that was abandoned and runs no more."""
        if (reminder := self._reminders.pop(ticket, None)) is not None:
            reminder.cancel()
        self._tell(Gone(ticket, attempt))

    def exited(self, error: BaseException) -> None:
        """End the run: asyncio lets the error of a coroutine out, but the loop may go on."""
        self._end(_broken(self._scheduler.options.name, "the function", error))

    def _checked(
        self, answers: list[tuple[Ticket, int, Any]], check: Callable[[Any], None]
    ) -> list[tuple[Ticket, int, Any]]:
        """Leave out results that are not acceptable and report them as failures."""
        good = []
        for ticket, attempt, result in answers:
            if self._batched and isinstance(result, list | tuple):
                good.append(
                    (
                        ticket,
                        attempt,
                        [
                            one if isinstance(one, BaseException) else _accepted(one, check)
                            for one in result
                        ],
                    )
                )
                continue
            accepted = _accepted(result, check)
            if isinstance(accepted, WrongResult):
                self.failed(ticket, attempt, accepted)
            else:
                good.append((ticket, attempt, accepted))
        return good

    # --- the parts

    def _part(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(self._guarded(work, name))
        task.set_name(f"{self._scheduler.options.name}-{name}")
        return task

    async def _guarded(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 go() raises it
            self._end(error)
        except BaseException as error:
            draining = name == "intake" and self._scheduler.draining
            if not (draining or self._over.done()):
                self._end(_broken(self._scheduler.options.name, name, error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    async def _take_in(self) -> None:
        while not self._scheduler.draining:
            pull = await self._pull
            self._pull = self._loop.create_future()
            records = await self._source.take(pull.records, pull.bytes)
            if self._over.done():
                self.given_back.extend(records)
                return
            if not records:
                self._tell(Drain())
                return
            if len(records) > pull.records:
                self.given_back.extend(records)
                raise ThulawaError(
                    f"{self._scheduler.options.name}: the source gave {len(records)} records "
                    f"where at most {pull.records} were asked for; mend its take()"
                )
            self._tell(Arrived(records))

    async def _put_out(self) -> None:
        while not self._over.done():
            await self._outbox_filled.wait()
            outcomes, self._outbox = self._outbox, []
            self._outbox_filled.clear()
            await self._sink.put(outcomes)
            delivered = Delivered(len(outcomes))
            if self._over.done():
                # taken although told to stop: it need not be given back, and nothing follows
                self._scheduler.handle(delivered, self._loop.time())
            else:
                self._tell(delivered)

    def _tell(self, event: Event) -> None:
        """Tell the scheduler what happened and carry out what it says."""
        if self._over.done():
            return
        try:
            instructions = self._scheduler.handle(event, self._loop.time())
        except Exception as error:  # noqa: BLE001 go() raises it; a worker must not swallow it
            if isinstance(event, Arrived):  # refused, it may be in no other place
                self.given_back.extend(event.records)
                error = _no_record(self._scheduler.options.name, event.records) or error
            self._end(error)
            return
        try:
            for instruction in instructions:
                self._carry_out[type(instruction)](instruction)
        except Exception as error:  # noqa: BLE001 as above
            self._end(error)
        if self._scheduler.abandoned or self._standstill is not None:
            self._look_for_standstill()

    def _look_for_standstill(self) -> None:
        """Fail if for long nothing is left to wait for but calls that were told to stop."""
        if self._standstill is not None:
            self._standstill.cancel()
            self._standstill = None
        if self._scheduler.stuck:
            patience = max(self._patience, _GIVING_WAY)
            self._standstill = self._loop.call_later(patience, self._stand_still)

    def _stand_still(self) -> None:
        options, count = self._scheduler.options, len(self._scheduler.abandoned)
        self._end(
            ThulawaError(
                f"{options.name}: {count} calls timed out and did not stop when told to, and "
                "nothing can go on without their keys or permits; let the function give way to "
                "cancellation, or give it a time-out of its own"
            )
        )

    def _remind(self, ticket: Ticket) -> None:
        del self._reminders[ticket]
        if ticket not in self._scheduler.abandoned:
            return
        _log.warning(
            "%s: the call of offset %d was told to stop %g s ago and has not; its key, %r, waits",
            self._scheduler.options.name,
            ticket.record.offset,
            self._patience,
            ticket.record.key,
        )

    def _give_back_rest(self) -> None:
        """Give back what is not finished; the workers have been told to stop already."""
        if self._scheduler.drained:
            return
        late = self.given_back
        self.given_back = []
        for instruction in self._scheduler.handle(Cancel(), self._loop.time()):
            if isinstance(instruction, GiveBack):
                both = {id(record): record for record in (*instruction.records, *late)}
                self.given_back = list(both.values())

    # --- the scheduler's instructions

    def _start(self, instruction: Start) -> None:
        self._workers.start(instruction.tickets)

    def _emit(self, instruction: Emit) -> None:
        if not self._outbox:
            self._outbox_filled.set()
        self._outbox.extend(instruction.outcomes)

    def _want(self, pull: Pull) -> None:
        self._pull.set_result(pull)

    def _wake_at(self, instruction: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(instruction.when, self._tell, Tick())

    def _abandon(self, instruction: Abandon) -> None:
        ticket = instruction.ticket
        self._workers.abandon(ticket, instruction.attempt)
        if (reminder := self._reminders.pop(ticket, None)) is not None:
            reminder.cancel()  # its call had ended when it was told to stop
        self._reminders[ticket] = self._loop.call_later(self._patience, self._remind, ticket)

    def _drained(self, _: Drained) -> None:
        self._end(None)

    def _abort(self, instruction: Abort) -> None:
        self._end(instruction.error)

    def _end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)


def _no_record(engine: str, records: Sequence[object]) -> ThulawaError | None:
    """Give an error that says what was taken for a record, if anything was."""
    for record in records:
        if not isinstance(record, Record):
            return ThulawaError(
                f"{engine}: records must be made with Record(offset, key, value, ...), "
                f"not {type(record).__name__}: {record!r:.100}"
            )
    return None


def _broken(engine: str, part: str, error: BaseException) -> ThulawaError:
    """Give an error that says who ended a run with what is no error."""
    broken = ThulawaError(
        f"{engine}: {part} raised {type(error).__name__} though nobody had told it to stop; "
        "raise an error that says what happened"
    )
    broken.__cause__ = error
    return broken


def _accepted(result: Any, check: Callable[[Any], None]) -> Any:
    """Give the result, or the error that says why it is not acceptable."""
    try:
        check(result)
    except Exception as error:  # noqa: BLE001 whatever the check raises is its verdict
        wrong = WrongResult(str(error.args[0]) if error.args else repr(error))
        wrong.__cause__ = error
        return wrong
    return result
