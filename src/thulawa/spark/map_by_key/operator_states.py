"""The state of operators that a Python worker retains between tasks, and when it is closed.

It consists of the open resource, the cache, and what the engine has learned. The function is not
part of it: Spark unpickles it for each task, with its accumulators and other references.

A resource is closed when it has not been used for a minute; two seconds after its last use when an
operator of the same name and columns has replaced it, as when a notebook's cell is run again; when
more than `_MOST` operators were used since; and when the worker ends. All bookkeeping is done on
the thread of the worker's event loop.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Hashable, MutableMapping
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from typing import Any, NoReturn

from thulawa.engine import Engine
from thulawa.engine.resources import OpenResource, resource_title
from thulawa.engine.state import LearnedState
from thulawa.engine.workers import VALUE
from thulawa.errors import ThulawaError, WrongResult
from thulawa.spark.event_loop import event_loop
from thulawa.spark.map_by_key.operator import Operator

_log = logging.getLogger("thulawa.spark")

_MOST = 16  # operators whose state a worker retains
_IDLE = 60.0
_REPLACED = 2.0
_BLOCKED = 5.0  # seconds after a timeout for the event loop to respond
_AT_EXIT = 10.0  # seconds for closing all

_leave = os._exit
_closing = threading.Lock()

# by the identity of the operator, the least recently used first
_states: dict[str, "OperatorState"] = {}
_closings: set[asyncio.Task[None]] = set()  # a loop holds no references to its tasks


class OperatorState:
    """What a worker retains of one operator."""

    def __init__(self, operator: Operator) -> None:
        self.signature = operator.signature
        self.cache: MutableMapping[Hashable, Any] | None = (
            None if operator.cache is None else operator.cache()
        )
        self.in_use = False
        self._learned: LearnedState | None = None
        self._resource: OpenResource | None = None
        self._opened: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._run: asyncio.Task[Any] | None = None

    async def open(self, operator: Operator) -> None:
        """Open the operator's resource unless it is open."""
        self.in_use = True
        self._cancel_timer()
        if operator.resource is None or self._resource is not None:
            return
        resource = OpenResource(
            operator.resource, owner=operator.name, timeout=operator.options.resource_timeout
        )
        self._opened = await resource.open()
        self._resource = resource

    @asynccontextmanager
    async def engine(self, operator: Operator) -> AsyncIterator[Engine]:
        """Yield an engine for one task, with what earlier ones opened, cached and learned."""
        engine = Engine(
            operator.function,
            operator.options,
            argument=VALUE,
            resource=None if operator.resource is None else lambda: nullcontext(self._opened),
            cache=self.cache,
            check=_check_list if operator.flat else None,
            learned=self._learned,
        )
        self._learned = engine.learned
        self._run = asyncio.current_task()
        try:
            async with engine:
                yield engine
        finally:
            if self._run is asyncio.current_task():  # else another task has begun
                self._run = None

    def release(self) -> None:
        """Mark it as unused when a task has ended; may be called on any thread."""
        event_loop().call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self.in_use = False
        self.close_in(_IDLE)

    def close_in(self, seconds: float) -> None:
        """Close the resource after so many seconds, or sooner, unless it is used before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._resource is None or (self._timer is not None and self._timer.when() <= when):
            return
        self._cancel_timer()
        self._timer = loop.call_at(when, self.close_soon)

    def close_soon(self) -> None:
        """Close the resource in the background; the next user opens another."""
        resource = self._detach()
        if resource is not None:
            closing = asyncio.get_running_loop().create_task(_close(resource))
            _closings.add(closing)
            closing.add_done_callback(_closings.discard)

    async def close(self, within: float) -> None:
        """Cancel the current run and close the resource, because the worker ends."""
        resource = self._detach()
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run], timeout=within)
        if resource is not None:
            await _close(resource, within)

    def _detach(self) -> OpenResource | None:
        self._cancel_timer()
        resource, self._resource, self._opened = self._resource, None, None
        return resource

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def lease(operator: Operator) -> OperatorState:
    """Return the state of an operator with its resource open; `release` it after the task."""
    work: Future[OperatorState] = asyncio.run_coroutine_threadsafe(_lease(operator), event_loop())
    if operator.resource is None:
        return work.result()
    seconds = operator.options.resource_timeout
    what = f"{operator.name}: its resource {resource_title(operator.resource)}"
    wait([work], seconds + _BLOCKED)
    if not work.done():
        raise ThulawaError(
            f"{what} did not open within {seconds:g} s and blocks the event loop; "
            "await what it waits for, or raise resource_timeout="
        )
    try:
        return work.result()
    except ThulawaError:
        raise
    except Exception as error:
        raise ThulawaError(
            f"{what} could not be opened: {type(error).__name__}: {error}; resource= takes a "
            "function that returns an async context manager, such as one made with "
            "@asynccontextmanager"
        ) from error


async def _lease(operator: Operator) -> OperatorState:
    state = _states.pop(operator.identity, None) or OperatorState(operator)
    await state.open(operator)
    _states[operator.identity] = state
    idle = [one for one in _states.values() if not one.in_use]
    for one in idle:
        if one.signature == state.signature:
            one.close_in(_REPLACED)
    for identity, one in list(_states.items())[: max(0, len(_states) - _MOST)]:
        if not one.in_use:
            del _states[identity]
            one.close_soon()
    return state


def close_all(seconds: float) -> None:
    """Close all resources within a time; call it on any thread but the event loop's."""
    if not (_states or _closings):
        return
    work = asyncio.run_coroutine_threadsafe(_close_all(seconds), event_loop())
    wait([work], seconds + _BLOCKED)
    if not work.done():
        _log.warning("resources did not close within %g s and block the event loop", seconds)


async def _close_all(seconds: float) -> None:
    states = list(_states.values())
    _states.clear()
    await asyncio.gather(*[one.close(seconds) for one in states], *_closings)


async def _close(resource: OpenResource, within: float | None = None) -> None:
    """Close a resource and log what it raises, because no caller awaits it."""
    try:
        await resource.close(within=within)
    except Exception as error:  # noqa: BLE001 the user's own
        _log.warning("%s", error, exc_info=not isinstance(error, ThulawaError))


def _check_list(results: Any) -> None:
    if not isinstance(results, list | tuple):
        raise WrongResult(f"{type(results).__name__} where a list of rows was expected")


@cache
def close_resources_at_exit() -> None:
    """Close this worker's resources when it ends; call it on the main thread.

    Spark ends a worker in three ways. It closes the worker's socket, after which the worker calls
    ``os._exit``, or sends SIGHUP to all workers when the session stops: both are handled here. It
    kills a worker whose task it abandons: then nothing can be closed.

    SIGHUP cannot have a handler, because Spark resets handlers whenever a worker waits for a task.
    It is blocked instead, and a thread waits for it. Threads inherit the signal mask, so the signal
    must be blocked before any other thread is started.
    """
    owner = os.getpid()

    def close_and_leave(status: int) -> NoReturn:
        if os.getpid() == owner:  # else this is a forked process
            with _closing:  # a second caller waits until all is closed
                close_all(_AT_EXIT)
        _leave(status)

    os._exit = close_and_leave  # what Spark calls
    if hasattr(signal, "pthread_sigmask"):  # on Windows Spark sends no signals
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        threading.Thread(target=_await_hangup, name="thulawa-hangup", daemon=True).start()


def _await_hangup() -> None:
    signal.sigwait({signal.SIGHUP})
    os._exit(1)
