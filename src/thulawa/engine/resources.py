"""A resource that is open while an engine uses it: a client, a pool, a session.

One asyncio task enters its context manager, waits, and exits it, because libraries such as anyio
need both in the same task. Opening and closing are bounded in time; a context manager that ignores
cancellation is left running.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from thulawa.core.callers import accepts
from thulawa.errors import ConfigurationError, ThulawaError

_CLEANUP_TIMEOUT = 1.0  # seconds for clean-up after cancellation

_Make = Callable[[], AbstractAsyncContextManager[Any]]


class OpenResource:
    """Holds one resource open; create it inside a running event loop."""

    def __init__(self, make: _Make, *, owner: str, timeout: float) -> None:
        self._make = make
        self._what = f"{owner}: its resource {resource_title(make)}"
        self._name = f"{owner}-resource"
        self._timeout = timeout
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._closing: asyncio.Future[BaseException | None] = loop.create_future()
        self._holder: asyncio.Task[None] | None = None

    async def open(self) -> Any:
        """Return the value of the context manager; raise what it raises.

        Raises `ThulawaError` when this takes longer than the timeout.
        """
        holder = self._holder = asyncio.create_task(self._hold(), name=self._name)
        holder.add_done_callback(_retrieve)
        waited = [holder, self._opened]
        try:
            await asyncio.wait(waited, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop(holder)
            raise
        if self._opened.done():
            return self._opened.result()
        if holder.done():
            holder.result()
        raise await self._late(holder, "open", self._timeout)

    async def close(
        self, error: BaseException | None = None, *, within: float | None = None
    ) -> None:
        """Exit the context manager, with the error that ended its use; raise what it raises.

        Raises `ThulawaError` when this takes longer than the timeout, or ``within`` if shorter.
        """
        holder = self._holder
        if holder is None:
            return
        if not self._closing.done():
            self._closing.set_result(error)
        seconds = self._timeout if within is None else min(within, self._timeout)
        await asyncio.wait([holder], timeout=seconds)
        if not holder.done():
            raise await self._late(holder, "close", seconds)
        failure = None if holder.cancelled() else holder.exception()
        if failure is not None:
            raise failure

    async def _hold(self) -> None:
        stack = AsyncExitStack()
        self._opened.set_result(await stack.enter_async_context(self._make()))
        error: BaseException | None
        try:
            error = await self._closing
        except asyncio.CancelledError as cancelled:  # the loop ends
            error = cancelled
        trace = None if error is None else error.__traceback__
        # not raised in here: out of a task, SystemExit would end the loop
        await stack.__aexit__(None if error is None else type(error), error, trace)

    def _stop(self, holder: asyncio.Task[None]) -> None:
        """Cancel opening or closing; a resource that opens nevertheless is closed at once."""
        if not self._closing.done():
            self._closing.set_result(None)
        holder.cancel()

    async def _late(self, holder: asyncio.Task[None], verb: str, seconds: float) -> ThulawaError:
        """Cancel the holder and return the error of an operation that took too long."""
        self._stop(holder)
        await asyncio.wait([holder], timeout=_CLEANUP_TIMEOUT)
        return ThulawaError(
            f"{self._what} did not {verb} within {seconds:g} s; "
            "see what it waits for, or raise resource_timeout="
        )


def resource_title(make: Callable[..., Any]) -> str:
    """Return the name of a resource's factory, for messages."""
    return str(getattr(make, "__qualname__", type(make).__qualname__))


def check_resource(make: object, owner: str) -> None:
    """Raise `ConfigurationError` if ``make`` cannot be a factory of an async context manager.

    >>> check_resource(dict, "locate")
    Traceback (most recent call last):
    ...
    thulawa.errors.ConfigurationError: locate: resource=dict makes no async context manager; \
pass a function without arguments that returns one, such as one made with @asynccontextmanager
    """
    problem = _problem(make)
    if problem is not None:
        raise ConfigurationError(
            f"{owner}: resource={problem}; pass a function without arguments that returns one, "
            "such as one made with @asynccontextmanager"
        )


def _problem(make: object) -> str | None:
    if not callable(make):
        return f"{make!r:.60} is no function that makes an async context manager"
    title = resource_title(make)
    if isinstance(make, type) and not (hasattr(make, "__aenter__") and hasattr(make, "__aexit__")):
        return f"{title} makes no async context manager"
    if (
        inspect.isasyncgenfunction(make)
        or inspect.isgeneratorfunction(make)
        or inspect.iscoroutinefunction(make)
    ):
        return f"{title} makes no async context manager: it lacks @asynccontextmanager"
    if inspect.isgeneratorfunction(inspect.unwrap(make)):  # by contextlib.contextmanager
        return f"{title} makes a context manager that is not async"
    if not accepts(make, 0):
        return f"{title} takes arguments"
    return None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
