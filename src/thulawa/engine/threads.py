"""Run plain functions on threads, and report their results on the event loop.

There are as many threads as calls have ever been in flight at once. They read jobs from one queue
and append results to another, which the loop empties; one wake-up of the loop may serve many
calls. A call on a thread cannot be cancelled: one that is abandoned runs on, with its permit and
its key, and is reported stopped when it returns. Threads are daemons and are never joined, so that
a call that does not return does not keep the process alive. Each call runs in a copy of the
context in which the run was started.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

from thulawa.engine.work_items import Ticket
from thulawa.engine.workers import CallListener, wrap_base_exception
from thulawa.errors import WrongResult

_Job: TypeAlias = tuple[Ticket, int, Any]


class ThreadWorkers:
    """Runs a plain function on threads, for the current event loop."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        argument: Callable[[Ticket], Any],
        listener: CallListener,
        name: str,
    ) -> None:
        self._function = function
        self._argument = argument
        self._listener = listener
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: deque[tuple[Ticket, int, Any, BaseException | None]] = deque()
        self._wake_pending = False
        self._running: set[tuple[Ticket, int]] = set()
        self._abandoned: set[tuple[Ticket, int]] = set()  # of those that run
        self._threads = 0
        self._closed = False
        self._all_ended: asyncio.Future[None] = self._loop.create_future()

    def start(self, tickets: Iterable[Ticket]) -> None:
        """Run a call for each ticket."""
        for ticket in tickets:
            self._running.add((ticket, ticket.attempt))
            try:
                self._jobs.put((ticket, ticket.attempt, self._argument(ticket)))
            except Exception as error:  # noqa: BLE001 the user's function may raise anything
                self._ended.append((ticket, ticket.attempt, None, error))
                self._wake_loop()
        while self._threads < len(self._running):
            self._threads += 1
            Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def abandon(self, ticket: Ticket, attempt: int) -> None:
        """Keep the call from beginning, or its result from being reported."""
        if (ticket, attempt) in self._running:  # else it has ended and will be reported
            self._abandoned.add((ticket, attempt))

    async def close(self, within: float) -> int:
        """End the threads; return the number of calls that did not end in time."""
        self._closed = True
        try:
            if self._running:
                await asyncio.wait([self._all_ended], timeout=within)
        finally:
            for _ in range(self._threads):
                self._jobs.put(None)
        return len(self._running)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            ticket, attempt, argument = job
            try:
                self._ended.append((ticket, attempt, self._call(*job), None))
            except BaseException as error:  # noqa: BLE001 else the thread ends and the call is never reported
                self._ended.append((ticket, attempt, None, error))
            del job, ticket, argument
            self._wake_loop()

    def _call(self, ticket: Ticket, attempt: int, argument: Any) -> Any:
        if self._closed or (ticket, attempt) in self._abandoned:
            return None  # the result would not be used
        result = self._context.copy().run(self._function, argument)
        if inspect.iscoroutine(result):
            result.close()
            raise WrongResult("a plain function returned a coroutine: declare it with async def")
        return result

    def _wake_loop(self) -> None:
        if self._wake_pending:
            return
        self._wake_pending = True
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:  # the loop is closed, and the call will not be reported
            self._wake_pending = False

    def _collect(self) -> None:
        self._wake_pending = False
        results: list[_Job] = []
        while self._ended:
            ticket, attempt, result, error = self._ended.popleft()
            self._running.discard((ticket, attempt))
            if self._closed:
                continue
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self._listener.exited(error)
            elif (ticket, attempt) in self._abandoned:
                self._abandoned.discard((ticket, attempt))
                self._listener.call_stopped(ticket, attempt)
            elif error is None:
                results.append((ticket, attempt, result))
            elif isinstance(error, Exception):
                self._listener.failed(ticket, attempt, error)
            else:
                self._listener.failed(ticket, attempt, wrap_base_exception(error))
        if results and not self._closed:
            self._listener.succeeded(results)
        if self._closed and not (self._running or self._all_ended.done()):
            self._all_ended.set_result(None)
