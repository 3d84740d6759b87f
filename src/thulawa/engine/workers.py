"""Run coroutine functions: as many calls at once as the scheduler starts.

Calls run on worker tasks that live as long as the run, not on a task each: at 1,000 calls of
5 ms in flight a task each reaches 61,000 calls/s on stock asyncio, workers 143,000 (two-core
machine, November 2026; see docs/adr/0004). A worker that ends a call usually finds its next
one in the answer to a report and goes on without the loop being asked. Calls that end in the
same turn of the loop are reported together; a call that ends while nothing else does, at once.
Whoever wakes up wakes two more while there is work, so a burst of n starts is under way after
log n turns, and a function that never waits does not wake anybody in vain.

A call is abandoned by cancelling its worker's task; the worker lives on. A function that
swallows the cancellation keeps its worker busy: such strays are counted and bounded.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from thulawa.core.errors import SelfCancelled
from thulawa.engine.model import Record, Ticket

__all__ = ["CoroutineWorkers", "Report", "Workers"]

_REPORT_AT = 64
_REST_AFTER = 256


class Report(Protocol):
    """What workers tell: calls that returned, and a call that raised."""

    def succeeded(self, answers: list[tuple[Ticket, int, Any]]) -> None:
        """Take calls that returned: ticket, attempt and result of each."""

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Take a call that raised."""


class Workers(Protocol):
    """Who runs the user's function."""

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Stop that call; what it gives is not wanted any more."""

    def strays(self) -> int:
        """Count the calls that were abandoned and have not stopped."""

    async def close(self, patience: float) -> int:
        """Stop everything; give the number of calls that would not stop in time."""


class _Worker:
    __slots__ = ("abandoned", "attempt", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
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
        self._starts: deque[tuple[Ticket, int]] = deque()
        self._void: set[tuple[Ticket, int]] = set()
        self._done: list[tuple[Ticket, int, Any]] = []
        self._running: dict[Ticket, _Worker] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[_Worker] = set()
        self._strays: set[_Worker] = set()
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
        del self._running[ticket]
        self._strays.add(worker)
        worker.abandoned = True
        assert worker.task is not None
        worker.task.cancel()

    def strays(self) -> int:
        """Count the calls that were abandoned and have not stopped."""
        return len(self._strays)

    async def close(self, patience: float) -> int:
        """Cancel all workers; give the number of calls that would not stop in time."""
        self._closing = True
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=patience)
        return len(pending)

    def _wake_two(self) -> None:
        for _ in range(min(2, len(self._starts))):
            self._waking += 1
            if self._idle:
                self._idle.pop().set_result(None)
            else:
                worker = _Worker()
                self._workers.add(worker)
                worker.task = self._loop.create_task(self._work(worker))

    async def _work(self, worker: _Worker) -> None:
        try:
            while True:
                self._waking -= 1
                await self._work_off(worker)
                rest = self._loop.create_future()
                self._idle.append(rest)
                await rest
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._workers.discard(worker)

    async def _work_off(self, worker: _Worker) -> None:
        """Run calls until none is left to start."""
        starts = self._starts
        calls = 0
        while starts:
            ticket, attempt = starts.popleft()
            if self._void and (ticket, attempt) in self._void:
                self._void.discard((ticket, attempt))
                continue
            if starts and (calls == 0 or not self._waking):
                self._wake_two()
            await self._run(worker, ticket, attempt)
            self._turn += 1
            calls += 1
            if calls % _REST_AFTER == 0:
                await asyncio.sleep(0)  # a function that never waits must not hog the loop
        if self._done and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_rest)

    async def _run(self, worker: _Worker, ticket: Ticket, attempt: int) -> None:
        self._running[ticket] = worker
        worker.attempt = attempt
        turn = self._turn
        try:
            result = await self._function(self._argument(ticket))
        except asyncio.CancelledError:
            if self._closing:
                raise
            self._failed(worker, ticket, SelfCancelled("the function cancelled itself"))
        except Exception as error:  # noqa: BLE001 the policy decides about any error
            self._failed(worker, ticket, error)
        else:
            if worker.abandoned:
                self._returned_home(worker)
            else:
                del self._running[ticket]
                self._done.append((ticket, attempt, result))
                if len(self._done) >= _REPORT_AT or (not self._starts and turn == self._turn):
                    self._flush()
        if worker.task is not None and worker.task.cancelling():
            await self._settle_down(worker)

    def _flush_rest(self) -> None:
        self._flushing = False
        answers, self._done = self._done, []
        if answers:
            self._report.succeeded(answers)

    def _flush(self) -> None:
        if self._done:
            answers, self._done = self._done, []
            self._reporting = True
            self._report.succeeded(answers)
            self._reporting = False

    def _failed(self, worker: _Worker, ticket: Ticket, error: Exception) -> None:
        self._flush()
        if worker.abandoned:
            self._returned_home(worker)
        else:
            del self._running[ticket]
            self._reporting = True
            self._report.failed(ticket, worker.attempt, error)
            self._reporting = False

    def _returned_home(self, worker: _Worker) -> None:
        worker.abandoned = False
        self._strays.discard(worker)

    async def _settle_down(self, worker: _Worker) -> None:
        """Take back cancellations that were meant for a call that is over."""
        assert worker.task is not None
        while worker.task.cancelling():
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._closing:
                    raise
            worker.task.uncancel()


def record_of(ticket: Ticket) -> Record:
    """Give a function of single records its argument."""
    return ticket.record


def records_of(ticket: Ticket) -> list[Record]:
    """Give a function of batches its argument."""
    return [member.record for member in ticket.members()]
