"""Run coroutine functions: as many calls at once as the scheduler starts.

Calls run on worker tasks that live as long as the run, not on a task each: at 1,000 calls of
5 ms in flight a task each reaches 61,000 calls/s on stock asyncio, workers 143,000 (two-core
machine, November 2026; see docs/adr/0004). A worker that ends a call usually finds its next
one in the answer to a report and goes on without the loop being asked. Calls that end in the
same turn of the loop are reported together; a call that ends while nothing else does, at once.
Whoever wakes up wakes two more while there is work, so a burst of n starts is under way after
log n turns, and a function that never waits does not wake anybody in vain.

A call is abandoned by cancelling its worker's task; the worker lives on. Once the function has
given way, which may take it a few turns of the loop (a rollback, say), the call is reported gone;
until then the scheduler keeps its permit and its keys.

Calls do not see each other's context variables: a worker whose context a call has changed for
good takes no other call. (Asking costs 0.1 µs a call; a copy of the context for each call would
need a task for each.)
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from thulawa.core.errors import SelfCancelled
from thulawa.engine.model import Record, Ticket

__all__ = ["VALUE", "CoroutineWorkers", "Report", "Workers", "argument_maker", "self_cancelled"]

VALUE: Callable[[Record], Any] = attrgetter("value")  # what most functions are called with
_VALUE_OF_TICKET: Callable[[Ticket], Any] = attrgetter("record.value")

_Start: TypeAlias = tuple[Ticket, int]

_REPORT_AT = 64  # calls that have ended, where this may bring what to start next
_REPORT_ALL = 256  # where there is enough to start
_REST_AFTER = 256


class Report(Protocol):
    """What workers tell. Each call that starts is reported once, whatever becomes of it."""

    def succeeded(self, answers: list[tuple[Ticket, int, Any]]) -> None:
        """Take calls that returned: ticket, attempt and result of each."""

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Take a call that raised."""

    def gone(self, ticket: Ticket, attempt: int) -> None:
        """Take a call that was abandoned and runs no more, or never began."""

    def exited(self, error: BaseException) -> None:
        """Take that a call raised SystemExit or KeyboardInterrupt: the run is over."""


class Workers(Protocol):
    """Who runs the user's function."""

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Stop that call; what it gives is not wanted any more. Report when it is gone."""

    async def close(self, patience: float) -> int:
        """Stop everything; give the number of calls that would not stop in time."""


class _Worker:
    """A task that runs one call after another."""

    __slots__ = ("abandoned", "attempt", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.attempt = 0
        self.abandoned = False


class CoroutineWorkers:
    """Runs a coroutine function on the current event loop."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        argument: Callable[[Ticket], Any],
        report: Report,
    ) -> None:
        self._function = function
        self._argument = argument
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._starts: deque[_Start] = deque()
        self._void: set[_Start] = set()
        self._done: list[tuple[Ticket, int, Any]] = []
        self._running: dict[Ticket, _Worker] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._workers: dict[_Worker, None] = {}  # in order, so that a seed means one run
        self._waking = 0
        self._turn = 0  # moves on whenever any call ends
        self._flushing = False
        self._reporting = False  # by a worker, which then starts what this brings
        self._closing = False

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""
        self._starts.extend([(ticket, ticket.attempt) for ticket in tickets])
        if not (self._waking or self._reporting):
            self._wake_two()

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Cancel that call, or see to it that it never begins."""
        worker = self._running.get(ticket)
        if worker is None or worker.attempt != attempt:
            self._void.add((ticket, attempt))
            return
        worker.abandoned = True
        worker.task.cancel()

    async def close(self, patience: float) -> int:
        """Cancel all workers; give the number of calls that would not stop in time."""
        self._closing = True
        self._starts.clear()
        for worker in self._running.values():
            if not worker.abandoned:  # else it is on its way, and not to be disturbed
                worker.task.cancel()
        for rest in self._idle:
            if not rest.done():
                rest.set_result(None)
        tasks = [worker.task for worker in self._workers]
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=patience)
        return len(pending)

    # --- who works

    def _wake_two(self) -> None:
        for _ in range(min(2, len(self._starts))):
            self._waking += 1
            while self._idle:
                rest = self._idle.pop()
                if not rest.cancelled():
                    rest.set_result(None)
                    break
            else:
                self._hire()

    def _hire(self) -> None:
        worker = _Worker()
        self._workers[worker] = None
        worker.task = self._loop.create_task(self._work(worker), context=self._context.copy())
        worker.task.add_done_callback(partial(self._ended, worker))

    async def _work(self, worker: _Worker) -> None:
        while True:
            self._waking -= 1
            fit = await self._work_off(worker)
            if self._closing or not fit:
                return
            await self._rest(worker)

    async def _rest(self, worker: _Worker) -> None:
        """Wait to be woken; a cancellation was meant for a call that is over."""
        while True:
            rest = self._loop.create_future()
            self._idle.append(rest)
            try:
                await rest
            except asyncio.CancelledError:
                if self._closing:
                    raise
                worker.task.uncancel()
            if not rest.cancelled():
                return
            if rest in self._idle:
                self._idle.remove(rest)

    def _ended(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        """See to the call and to the starts that a worker has left behind."""
        del self._workers[worker]
        error = None if task.cancelled() else task.exception()
        if self._closing:
            return
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._report.exited(error)
        elif error is not None:  # neither Exception nor CancelledError: those were caught
            ticket = next(ticket for ticket, at in self._running.items() if at is worker)
            self._failed(worker, ticket, self_cancelled(error))
        if not self._waking:
            self._wake_two()

    # --- what is done

    async def _work_off(self, worker: _Worker) -> bool:  # noqa: C901 what it calls, each call pays
        """Run calls until none is left to start; tell whether the worker is fit for others."""
        starts, running, context = self._starts, self._running, self._context
        function, argument, cancelling = self._function, self._argument, worker.task.cancelling
        by_value = argument is _VALUE_OF_TICKET
        calls = 0
        fit = True
        while starts and fit:
            ticket, attempt = starts.popleft()
            if self._void and self._is_void(ticket, attempt):
                continue
            if starts and (calls == 0 or not self._waking):
                self._wake_two()
            running[ticket] = worker
            worker.attempt = attempt
            turn = self._turn
            try:  # here: each call would pay for a coroutine of its own (docs/adr/0010)
                result = await function(ticket.record.value if by_value else argument(ticket))
            except asyncio.CancelledError:
                if self._closing:
                    raise
                self._failed(worker, ticket, SelfCancelled("the function cancelled itself"))
            except Exception as error:  # noqa: BLE001 the policy decides about any error
                self._failed(worker, ticket, error)
            else:
                if worker.abandoned:
                    self._gone(worker, ticket)
                else:
                    del running[ticket]
                    self._done.append((ticket, attempt, result))
                    alone = not starts and turn == self._turn
                    if alone or len(self._done) >= (_REPORT_ALL if starts else _REPORT_AT):
                        self._flush()
            self._turn += 1
            calls += 1
            if cancelling() or calls % _REST_AFTER == 0:
                await self._settle_down(worker)  # who never waits must not hog the loop
            try:  # have the calls of this worker left its context variables alone?
                fit = copy_context() == context
            except Exception:  # noqa: BLE001 values that will not be compared are not the same
                fit = False
        self._flush_soon()
        return fit

    def _is_void(self, ticket: Ticket, attempt: int) -> bool:
        """Tell whether a call was abandoned before it began; then it is gone."""
        if (ticket, attempt) not in self._void:
            return False
        self._void.discard((ticket, attempt))
        self._tell(self._report.gone, ticket, attempt)
        return True

    async def _settle_down(self, worker: _Worker) -> None:
        """Let others go on; take back cancellations that were meant for a call that is over."""
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._closing:
                    raise
            if not worker.task.cancelling() or not worker.task.uncancel():
                return

    # --- what is told

    def _flush_soon(self) -> None:
        """See to it that calls are reported after which nobody runs another."""
        if not self._starts:
            self._void.clear()  # of calls that had ended, but were not reported yet
        if self._done and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_rest)

    def _flush_rest(self) -> None:
        self._flushing = False
        answers, self._done = self._done, []
        if answers:
            self._report.succeeded(answers)

    def _flush(self) -> None:
        if self._done:
            answers, self._done = self._done, []
            self._tell(self._report.succeeded, answers)

    def _failed(self, worker: _Worker, ticket: Ticket, error: Exception) -> None:
        self._flush()
        if worker.abandoned:
            self._gone(worker, ticket)
        else:
            del self._running[ticket]
            self._tell(self._report.failed, ticket, worker.attempt, error)

    def _gone(self, worker: _Worker, ticket: Ticket) -> None:
        del self._running[ticket]
        worker.abandoned = False
        self._tell(self._report.gone, ticket, worker.attempt)

    def _tell(self, report: Callable[..., None], *what: Any) -> None:
        """Report something; whoever calls this sees to the starts that it leads to."""
        self._reporting = True
        try:
            report(*what)
        finally:
            self._reporting = False


def self_cancelled(error: BaseException) -> SelfCancelled:
    """Give the error of a record whose function raised what no handler of errors catches."""
    told = SelfCancelled(f"the function raised {type(error).__name__}")
    told.__cause__ = error
    return told


def argument_maker(
    of_record: Callable[[Record], Any] | None, *, batched: bool
) -> Callable[[Ticket], Any]:
    """Give what makes a call's argument of its ticket."""
    if of_record is None:
        if batched:
            return lambda ticket: [member.record for member in ticket.members()]
        record: Callable[[Ticket], Any] = attrgetter("record")
        return record
    if batched:
        return lambda ticket: [of_record(member.record) for member in ticket.members()]
    if of_record is VALUE:
        return _VALUE_OF_TICKET
    return lambda ticket: of_record(ticket.record)
