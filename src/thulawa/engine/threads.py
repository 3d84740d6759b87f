"""Run plain functions: each call on a thread of its own choosing, results back on the loop.

There are as many threads as calls have ever been in flight at once. They take work from one
queue and put what they get into another, which the loop empties when it is told to; it is told
once, not once a call. A call on a thread cannot be stopped: one that is abandoned runs on, with
its permit and its key, and is reported gone when it returns. Threads are daemons and are never
joined, so that a call that does not return does not keep the process alive. Each call runs in a
copy of the context in which the run was started.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

from thulawa.core.errors import WrongResult
from thulawa.engine.model import Ticket
from thulawa.engine.workers import Report, self_cancelled

__all__ = ["ThreadWorkers"]

_Job: TypeAlias = tuple[Ticket, int, Any]


class ThreadWorkers:
    """Runs a plain function on threads, for the current event loop."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        argument: Callable[[Ticket], Any],
        report: Report,
        name: str,
    ) -> None:
        self._function = function
        self._argument = argument
        self._report = report
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: deque[tuple[Ticket, int, Any, BaseException | None]] = deque()
        self._told = False
        self._running: set[tuple[Ticket, int]] = set()
        self._abandoned: set[tuple[Ticket, int]] = set()  # of those that run
        self._threads = 0
        self._closed = False
        self._quiet: asyncio.Future[None] = self._loop.create_future()

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""
        for ticket in tickets:
            self._running.add((ticket, ticket.attempt))
            try:
                self._jobs.put((ticket, ticket.attempt, self._argument(ticket)))
            except Exception as error:  # noqa: BLE001 the user's function may raise anything
                self._ended.append((ticket, ticket.attempt, None, error))
                self._tell()
        while self._threads < len(self._running):
            self._threads += 1
            Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """See to it that the call does not begin, or that what it gives is not reported."""
        if (ticket, attempt) in self._running:  # else it has ended, and that is reported
            self._abandoned.add((ticket, attempt))

    async def close(self, patience: float) -> int:
        """Let the threads end; give the number of calls that did not end in time."""
        self._closed = True
        try:
            if self._running:
                await asyncio.wait([self._quiet], timeout=patience)
        finally:
            for _ in range(self._threads):
                self._jobs.put(None)
        return len(self._running)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            ticket, attempt, argument = job
            try:
                self._ended.append((ticket, attempt, self._call(*job), None))
            except BaseException as error:  # noqa: BLE001 else the thread dies and nobody hears
                self._ended.append((ticket, attempt, None, error))
            del job, ticket, argument
            self._tell()

    def _call(self, ticket: Ticket, attempt: int, argument: Any) -> Any:
        if self._closed or (ticket, attempt) in self._abandoned:
            return None  # nobody wants to know any more
        result = self._context.copy().run(self._function, argument)
        if inspect.iscoroutine(result):
            result.close()
            raise WrongResult("a plain function returned a coroutine: declare it with async def")
        return result

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:  # the loop is closed, and nobody waits for this call any more
            self._told = False

    def _collect(self) -> None:
        self._told = False
        answers: list[_Job] = []
        while self._ended:
            ticket, attempt, result, error = self._ended.popleft()
            self._running.discard((ticket, attempt))
            if self._closed:
                continue
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self._report.exited(error)
            elif (ticket, attempt) in self._abandoned:
                self._abandoned.discard((ticket, attempt))
                self._report.gone(ticket, attempt)
            elif error is None:
                answers.append((ticket, attempt, result))
            elif isinstance(error, Exception):
                self._report.failed(ticket, attempt, error)
            else:
                self._report.failed(ticket, attempt, self_cancelled(error))
        if answers and not self._closed:
            self._report.succeeded(answers)
        if self._closed and not (self._running or self._quiet.done()):
            self._quiet.set_result(None)
