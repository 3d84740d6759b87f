"""Run coroutine functions on a pool of asyncio tasks.

Calls run on worker tasks that live as long as the run, which is more than twice as fast as a task
each (figures in docs/adr/0004). A worker that reports a call usually gets its next call from the
report, without an iteration of the loop. Calls that end in the same iteration are reported
together; a call that ends alone, at once. Each worker that wakes up wakes two more while there is
work, so a burst of n starts is running after log n iterations.

A call is abandoned by cancelling its worker's task; the worker lives on. The call is reported
stopped once the function has ended, which may take it a few iterations (a rollback, say); until
then the scheduler keeps its permit and its keys.

Calls do not see each other's context variables: a worker whose context was changed by a call makes
no other call. (A copy of the context for each call would need a task for each.)
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from thulawa.engine.work_items import Ticket, WorkItem
from thulawa.errors import SelfCancelled

VALUE: Callable[[WorkItem], Any] = attrgetter("value")  # the usual argument
_VALUE_OF_TICKET: Callable[[Ticket], Any] = attrgetter("record.value")

_Start: TypeAlias = tuple[Ticket, int]

# Calls that are reported together: fewer where the report may bring the next starts.
_REPORT_IDLE = 64
_REPORT_BUSY = 256
_YIELD_AFTER = 256  # calls of a worker before it yields to the loop


class CallListener(Protocol):
    """Receives the end of calls. Each call that starts is reported exactly once."""

    def succeeded(self, results: list[tuple[Ticket, int, Any]]) -> None:
        """Report calls that returned: ticket, attempt and result of each."""

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Report a call that raised."""

    def call_stopped(self, ticket: Ticket, attempt: int) -> None:
        """Report an abandoned call that runs no more, or never began."""

    def exited(self, error: BaseException) -> None:
        """Report that a call raised SystemExit or KeyboardInterrupt, which ends the run."""


class Workers(Protocol):
    """Runs the user's function."""

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Stop that call, and report when it has stopped; its result is not used."""

    async def close(self, within: float) -> int:
        """Stop all calls; return the number that did not stop ``within`` so many seconds."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A task that makes one call after another."""

    task: asyncio.Task[None] = field(init=False)
    attempt: int = 0
    abandoned: bool = False


class CoroutineWorkers:
    """Runs a coroutine function on the current event loop."""

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        argument: Callable[[Ticket], Any],
        listener: CallListener,
    ) -> None:
        self._function = function
        self._argument = argument
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._starts: deque[_Start] = deque()
        self._cancelled_starts: set[_Start] = set()
        self._done: list[tuple[Ticket, int, Any]] = []
        self._running: dict[Ticket, _Worker] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._workers: dict[_Worker, None] = {}  # ordered, so that a seed determines a run
        self._waking = 0  # workers that were woken and have not started a call
        self._ended_calls = 0
        self._flushing = False
        self._reporting = False  # by a worker, which then starts the calls that this brings
        self._closing = False

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""
        self._starts.extend([(ticket, ticket.attempt) for ticket in tickets])
        if not (self._waking or self._reporting):
            self._wake_two()

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Cancel that call, or keep it from beginning."""
        worker = self._running.get(ticket)
        if worker is None or worker.attempt != attempt:
            self._cancelled_starts.add((ticket, attempt))
            return
        worker.abandoned = True
        worker.task.cancel()

    async def close(self, within: float) -> int:
        """Cancel all workers; return the number that did not stop in time."""
        self._closing = True
        self._starts.clear()
        for worker in self._running.values():
            if not worker.abandoned:  # a second cancel would interrupt its clean-up
                worker.task.cancel()
        for wakeup in self._idle:
            if not wakeup.done():
                wakeup.set_result(None)
        tasks = [worker.task for worker in self._workers]
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=within)
        return len(pending)

    # --- the pool of workers

    def _wake_two(self) -> None:
        for _ in range(min(2, len(self._starts))):
            self._waking += 1
            while self._idle:
                wakeup = self._idle.pop()
                if not wakeup.cancelled():
                    wakeup.set_result(None)
                    break
            else:
                worker = _Worker()
                self._workers[worker] = None
                running = self._run(worker)
                worker.task = self._loop.create_task(running, context=self._context.copy())
                worker.task.add_done_callback(partial(self._worker_ended, worker))

    async def _run(self, worker: _Worker) -> None:
        while True:
            self._waking -= 1
            reusable = await self._make_calls(worker)
            if self._closing or not reusable:
                return
            await self._wait_for_work(worker)

    async def _wait_for_work(self, worker: _Worker) -> None:
        """Wait to be woken; a cancellation was meant for a call that has ended."""
        while True:
            wakeup = self._loop.create_future()
            self._idle.append(wakeup)
            try:
                await wakeup
            except asyncio.CancelledError:
                if self._closing:
                    raise
                worker.task.uncancel()
            if not wakeup.cancelled():
                return
            if wakeup in self._idle:
                self._idle.remove(wakeup)

    def _worker_ended(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        """Report the call that ended a worker, and wake others for the remaining starts."""
        del self._workers[worker]
        error = None if task.cancelled() else task.exception()
        if self._closing:
            return
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._listener.exited(error)
        elif error is not None:  # neither Exception nor CancelledError: those were caught
            ticket = next(ticket for ticket, at in self._running.items() if at is worker)
            self._failed(worker, ticket, wrap_base_exception(error))
        if not self._waking:
            self._wake_two()

    # --- calls

    async def _make_calls(self, worker: _Worker) -> bool:  # noqa: C901 helpers cost every call
        """Make calls until none is left to start; return whether the worker is reusable."""
        starts, running, context = self._starts, self._running, self._context
        function, argument, cancelling = self._function, self._argument, worker.task.cancelling
        by_value = argument is _VALUE_OF_TICKET
        calls = 0
        reusable = True
        while starts and reusable:
            ticket, attempt = starts.popleft()
            if self._cancelled_starts and self._is_cancelled(ticket, attempt):
                continue
            if starts and (calls == 0 or not self._waking):
                self._wake_two()
            running[ticket] = worker
            worker.attempt = attempt
            ended = self._ended_calls
            try:  # inline: a helper coroutine would cost every call (docs/adr/0010)
                result = await function(ticket.record.value if by_value else argument(ticket))
            except asyncio.CancelledError:
                if self._closing:
                    raise
                self._failed(worker, ticket, SelfCancelled("the function cancelled itself"))
            except Exception as error:  # noqa: BLE001 the policy decides about any error
                self._failed(worker, ticket, error)
            else:
                if worker.abandoned:
                    self._stopped(worker, ticket)
                else:
                    del running[ticket]
                    self._done.append((ticket, attempt, result))
                    alone = not starts and ended == self._ended_calls
                    if alone or len(self._done) >= (_REPORT_BUSY if starts else _REPORT_IDLE):
                        self._flush()
            self._ended_calls += 1
            calls += 1
            if cancelling() or calls % _YIELD_AFTER == 0:
                await self._yield_to_loop(worker)  # a function may never await
            try:  # has a call changed the context variables?
                reusable = copy_context() == context
            except Exception:  # noqa: BLE001 values that cannot be compared count as changed
                reusable = False
        self._flush_soon()
        return reusable

    def _is_cancelled(self, ticket: Ticket, attempt: int) -> bool:
        """Return whether a call was abandoned before it began, and report it stopped if so."""
        if (ticket, attempt) not in self._cancelled_starts:
            return False
        self._cancelled_starts.discard((ticket, attempt))
        self._send(self._listener.call_stopped, ticket, attempt)
        return True

    async def _yield_to_loop(self, worker: _Worker) -> None:
        """Yield to the loop; undo cancellations that were meant for a call that has ended."""
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._closing:
                    raise
            if not worker.task.cancelling() or not worker.task.uncancel():
                return

    # --- reports

    def _flush_soon(self) -> None:
        """Report the remaining calls in the next iteration of the loop."""
        if not self._starts:
            self._cancelled_starts.clear()  # of calls that had ended and were not reported yet
        if self._done and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_rest)

    def _flush_rest(self) -> None:
        self._flushing = False
        results, self._done = self._done, []
        if results:
            self._listener.succeeded(results)

    def _flush(self) -> None:
        if self._done:
            results, self._done = self._done, []
            self._send(self._listener.succeeded, results)

    def _failed(self, worker: _Worker, ticket: Ticket, error: Exception) -> None:
        self._flush()
        if worker.abandoned:
            self._stopped(worker, ticket)
        else:
            del self._running[ticket]
            self._send(self._listener.failed, ticket, worker.attempt, error)

    def _stopped(self, worker: _Worker, ticket: Ticket) -> None:
        del self._running[ticket]
        worker.abandoned = False
        self._send(self._listener.call_stopped, ticket, worker.attempt)

    def _send(self, report: Callable[..., None], *arguments: Any) -> None:
        """Send a report; the calling worker makes the calls that this starts."""
        self._reporting = True
        try:
            report(*arguments)
        finally:
            self._reporting = False


def wrap_base_exception(error: BaseException) -> SelfCancelled:
    """Return the error of a record whose function raised a BaseException."""
    wrapped = SelfCancelled(f"the function raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def argument_maker(
    of_record: Callable[[WorkItem], Any] | None, *, batched: bool
) -> Callable[[Ticket], Any]:
    """Return a function from a call's lead ticket to the argument of the user's function."""
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


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop if it is installed, else of asyncio.

    uvloop is looked up, not imported: the engine depends on the standard library alone.
    """
    if find_spec("uvloop") is not None:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()
