"""The asyncio driver: carries out the scheduler's instructions.

Four parts with one concern each, connected only through the scheduler: *intake* reads from the
source when the scheduler asks for records; *workers* run the user's function; *output* passes
outcomes to the sink and reports them delivered; a *timer* wakes the scheduler. A slow sink delays
nothing else until the bounds are reached, and then only intake.

A record is finished only when the sink has accepted its outcome. When a run fails or is cancelled,
the running calls are cancelled and the unfinished records are returned, all within
``stop_timeout`` seconds whatever function, source and sink do; cancelled again, it stops at once.

An abandoned call keeps its key and its permit until it has stopped: a warning names one that has
not within ``stop_timeout``, and when nothing else can make progress, the run fails.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from thulawa.engine import events
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.work_items import Outcome, Ticket, WorkItem
from thulawa.engine.workers import CallListener, Workers
from thulawa.errors import ThulawaError, WrongResult

_log = logging.getLogger("thulawa.engine")

_MIN_STUCK_TIMEOUT = 1.0  # seconds that abandoned calls have at least before the run fails


class WorkSource(Protocol):
    """Where records come from."""

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:
        """Return at least one and up to ``records`` records, in offset order; none: the end.

        Once their sizes add up to ``size`` no more should be added. If cancelled, it must not have
        consumed any.
        """


class OutcomeSink(Protocol):
    """Where outcomes go."""

    async def put(self, outcomes: list[Outcome]) -> None:
        """Accept the outcomes; once it returns they are delivered."""


class Run:
    """One pass over a source; create it inside a running event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Callable[[CallListener], Workers],
        source: WorkSource,
        sink: OutcomeSink,
        *,
        stop_timeout: float = 5.0,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._state = scheduler.state
        self._source = source
        self._sink = sink
        self._stop_timeout = stop_timeout
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._workers = workers(self)
        self._batched = scheduler.state.options.batch is not None
        self._pull: asyncio.Future[events.Pull] = self._loop.create_future()
        self._outbox: list[Outcome] = []
        self._outbox_filled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reminders: dict[Ticket, asyncio.TimerHandle] = {}
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._parts: list[asyncio.Task[None]] = []
        self._intake: asyncio.Task[None] | None = None
        self.unfinished: list[WorkItem] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Start: lambda start: self._workers.start(start.tickets),
            events.Emit: self._emit,
            events.Pull: self._request,
            events.WakeAt: self._wake_at,
            events.Abandon: self._abandon,
            events.Drained: lambda _: self._end(None),
            events.Abort: lambda abort: self._end(abort.error),
        }

    async def execute(self, *, drained: bool = False) -> None:
        """Process the source to its end, or raise what ended the run before."""
        self._intake = self._part(self._read_source, "intake")
        self._parts = [self._intake, self._part(self._write_sink, "output")]
        self._handle(events.Tick())
        if drained:
            self.drain()
        try:
            await self._over
        finally:
            await self._stop()

    def now(self) -> float:
        """Return the loop time passed to the scheduler."""
        return self._loop.time()

    async def _stop(self) -> None:
        stop_by = self._loop.time() + self._stop_timeout
        for timer in (self._timer, self._stuck_timer, *self._reminders.values()):
            if timer is not None:
                timer.cancel()
        for task in self._parts:
            if not task.cancelling():  # a second cancel would interrupt its clean-up
                task.cancel()
        try:
            running = await self._workers.close(self._stop_timeout)
            await asyncio.wait(self._parts, timeout=max(0.0, stop_by - self._loop.time()))
        finally:
            self._return_unfinished()
        if running:
            _log.warning(
                "%s: %d calls did not stop within %g s and are left running",
                self._state.options.name,
                running,
                self._stop_timeout,
            )
        else:  # all have stopped
            for lead in list(self._state.abandoned):
                self._scheduler.handle(events.CallStopped(lead, lead.attempt), self._loop.time())

    def drain(self) -> None:
        """Stop intake; `execute` returns when all records that arrived are finished."""
        if self._intake is not None and not self._state.draining:
            self._intake.cancel()
            self._handle(events.Drain())

    def mark_delivered(self, records: list[WorkItem]) -> None:
        """Remove records from ``unfinished`` that were delivered after the run had ended."""
        delivered = set(map(id, records))  # by id: a bad source may return anything
        self.unfinished = [record for record in self.unfinished if id(record) not in delivered]

    # --- reports of the workers

    def succeeded(self, results: list[tuple[Ticket, int, Any]]) -> None:
        """Report calls that returned to the scheduler."""
        if self._check is not None:
            results = self._checked(results, self._check)
        if not self._batched:
            self._handle(events.Succeeded(results))
            return
        for ticket, attempt, batch in results:
            self._handle(events.BatchReturned(ticket, attempt, batch))

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Report a call that raised to the scheduler."""
        self._handle(events.Failed(ticket, attempt, error))

    def call_stopped(self, ticket: Ticket, attempt: int) -> None:
        """Report an abandoned call that runs no more to the scheduler."""
        if (reminder := self._reminders.pop(ticket, None)) is not None:
            reminder.cancel()
        self._handle(events.CallStopped(ticket, attempt))

    def exited(self, error: BaseException) -> None:
        """End the run: asyncio raises this out of the loop, which may be run again."""
        self._end(_broken(self._state.options.name, "the function", error))

    def _checked(
        self, results: list[tuple[Ticket, int, Any]], check: Callable[[Any], None]
    ) -> list[tuple[Ticket, int, Any]]:
        """Return the results that pass the check; report the others as failures."""
        good = []
        for ticket, attempt, result in results:
            if self._batched and isinstance(result, list | tuple):
                checked = [
                    one if isinstance(one, BaseException) else _accepted(one, check)
                    for one in result
                ]
                good.append((ticket, attempt, checked))
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
        task.set_name(f"{self._state.options.name}-{name}")
        return task

    async def _guarded(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 execute() raises it
            self._end(error)
        except BaseException as error:
            draining = name == "intake" and self._state.draining
            if not (draining or self._over.done()):
                self._end(_broken(self._state.options.name, name, error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    async def _read_source(self) -> None:
        while not self._state.draining:
            pull = await self._pull
            self._pull = self._loop.create_future()
            records = await self._source.read(pull.records, pull.bytes)
            if self._over.done():
                self.unfinished.extend(records)
                return
            if not records:
                self._handle(events.Drain())
                return
            if len(records) > pull.records:
                self.unfinished.extend(records)
                raise ThulawaError(
                    f"{self._state.options.name}: the source returned {len(records)} records "
                    f"where at most {pull.records} were requested; correct its read()"
                )
            self._handle(events.Arrived(records))

    async def _write_sink(self) -> None:
        while not self._over.done():
            await self._outbox_filled.wait()
            outcomes, self._outbox = self._outbox, []
            self._outbox_filled.clear()
            await self._sink.put(outcomes)
            delivered = events.Delivered(len(outcomes))
            if self._over.done():
                # accepted while the run stops: not unfinished, but no instruction counts
                self._scheduler.handle(delivered, self._loop.time())
            else:
                self._handle(delivered)

    def _handle(self, event: events.Event) -> None:
        """Pass an event to the scheduler and carry out its instructions."""
        if self._over.done():
            return
        try:
            instructions = self._scheduler.handle(event, self._loop.time())
        except Exception as error:  # noqa: BLE001 execute() raises it; a worker must not swallow it
            if isinstance(event, events.Arrived):  # the scheduler may not have them
                self.unfinished.extend(event.records)
                error = _not_a_work_item(self._state.options.name, event.records) or error
            self._end(error)
            return
        try:
            for instruction in instructions:
                self._handlers[type(instruction)](instruction)
        except Exception as error:  # noqa: BLE001 as above
            self._end(error)
        if self._state.abandoned or self._stuck_timer is not None:
            self._check_stuck()

    def _check_stuck(self) -> None:
        """Fail the run if for long only abandoned calls could make progress possible."""
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        if self._scheduler.stuck:
            timeout = max(self._stop_timeout, _MIN_STUCK_TIMEOUT)
            self._stuck_timer = self._loop.call_later(timeout, self._fail_stuck)

    def _fail_stuck(self) -> None:
        options, count = self._state.options, len(self._state.abandoned)
        self._end(
            ThulawaError(
                f"{options.name}: {count} calls timed out and did not stop when cancelled, and "
                "nothing can make progress without their keys or permits; do not suppress "
                "CancelledError in the function, or give it a timeout of its own"
            )
        )

    def _remind(self, ticket: Ticket) -> None:
        del self._reminders[ticket]
        if ticket not in self._state.abandoned:
            return
        _log.warning(
            "%s: the call of offset %d, cancelled %g s ago, has not stopped; its key, %r, waits",
            self._state.options.name,
            ticket.record.offset,
            self._stop_timeout,
            ticket.record.key,
        )

    def _return_unfinished(self) -> None:
        """Cancel the scheduler and store the records that are not finished."""
        if self._state.drained:
            return
        late = self.unfinished
        self.unfinished = []
        for instruction in self._scheduler.handle(events.Cancel(), self._loop.time()):
            if isinstance(instruction, events.ReturnUnfinished):
                both = {id(record): record for record in (*instruction.records, *late)}
                self.unfinished = list(both.values())

    # --- instructions of the scheduler

    def _request(self, pull: events.Pull) -> None:
        self._pull.set_result(pull)

    def _emit(self, instruction: events.Emit) -> None:
        if not self._outbox:
            self._outbox_filled.set()
        self._outbox.extend(instruction.outcomes)

    def _wake_at(self, instruction: events.WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(instruction.when, self._handle, events.Tick())

    def _abandon(self, instruction: events.Abandon) -> None:
        ticket = instruction.ticket
        self._workers.abandon(ticket, instruction.attempt)
        if (reminder := self._reminders.pop(ticket, None)) is not None:
            reminder.cancel()  # of an earlier attempt, which had ended when it was abandoned
        self._reminders[ticket] = self._loop.call_later(self._stop_timeout, self._remind, ticket)

    def _end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)


def _not_a_work_item(engine: str, records: Sequence[object]) -> ThulawaError | None:
    """Return an error that names the first object that is no `WorkItem`, if there is one."""
    for record in records:
        if not isinstance(record, WorkItem):
            return ThulawaError(
                f"{engine}: records must be made with WorkItem(offset, key, value, ...), "
                f"not {type(record).__name__}: {record!r:.100}"
            )
    return None


def _broken(engine: str, part: str, error: BaseException) -> ThulawaError:
    """Return the error of a run whose part raised a BaseException, such as CancelledError."""
    broken = ThulawaError(
        f"{engine}: {part} raised {type(error).__name__} though it was not cancelled; "
        "raise an Exception that says what happened"
    )
    broken.__cause__ = error
    return broken


def _accepted(result: Any, check: Callable[[Any], None]) -> Any:
    """Return the result, or a `WrongResult` if the check raises."""
    try:
        check(result)
    except Exception as error:  # noqa: BLE001 whatever the check raises rejects the result
        wrong = WrongResult(str(error.args[0]) if error.args else repr(error))
        wrong.__cause__ = error
        return wrong
    return result
