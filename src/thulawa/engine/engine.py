"""The engine as a user meets it: a function, options, and records to run it over."""

import asyncio
import functools
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Hashable,
    Iterable,
    MutableMapping,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Self

from thulawa.core.errors import ConfigurationError, ThulawaError
from thulawa.engine.driver import Run, Sink, Source
from thulawa.engine.model import Outcome, Record
from thulawa.engine.options import Options
from thulawa.engine.resources import OpenResource, check_resource
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.sources import Channel, source_of
from thulawa.engine.state import Memory
from thulawa.engine.statistics import Statistics
from thulawa.engine.threads import ThreadWorkers
from thulawa.engine.watchdog import Watchdog
from thulawa.engine.workers import CoroutineWorkers, Report, Workers, argument_maker

__all__ = ["Engine"]

_log = logging.getLogger("thulawa.engine")


class Engine:
    """Run a function over records, many keys at once, each key in order, nothing lost.

    ``function`` takes a `Record`, or what ``argument`` makes of it (with `Batch` a list of
    them, and then returns a list: per record a result or an exception). A coroutine function
    runs on the event loop, a plain one on threads, at most ``threads`` of them. With
    ``resource`` (a function without arguments that returns an async context manager: an HTTP
    session, a database pool) it is opened when the engine is entered, closed when it is left,
    and handed to the function as its second argument; ``Options.resource_timeout`` bounds both.
    ``cache`` is any mapping; with `Sharing` it keeps the answers. ``check`` is called with every
    result and raises if it is not acceptable. ``memory`` is that of an earlier engine with the same
    options: this one goes on with what that one has learned.

    >>> import asyncio
    >>> async def shout(record):
    ...     await asyncio.sleep(0.001)
    ...     return record.value.upper()
    >>> async def main():
    ...     records = [
    ...         Record(offset, key, value)
    ...         for offset, (key, value) in enumerate([("a", "one"), ("b", "two"), ("a", "three")])
    ...     ]
    ...     async with Engine(shout, Options(emit="partition")) as engine:
    ...         return [outcome.result async for outcome in engine.map(records)]
    >>> asyncio.run(main())
    ['ONE', 'TWO', 'THREE']
    """

    def __init__(  # noqa: PLR0913 each is optional and named
        self,
        function: Callable[..., Any],
        options: Options | None = None,
        *,
        argument: Callable[[Record], Any] | None = None,
        resource: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        check: Callable[[Any], None] | None = None,
        threads: int = 64,
        patience: float = 5.0,
        watch: bool = True,
        random: Random | None = None,
        memory: Memory | None = None,
    ) -> None:
        _check_parts(function, options, threads, patience)
        self._function = function
        self._inner = _unwrapped(function)
        self._is_coroutine = inspect.iscoroutinefunction(self._inner)
        self.options = options or Options()
        if not self._is_coroutine:
            self.options = self._capped(self.options, threads)
        if cache is not None and self.options.sharing is None:
            raise ConfigurationError("a cache needs Options(sharing=Sharing(by=...)): the question")
        self._argument = argument
        if resource is not None:
            check_resource(resource, self.options.name)
        self._open_resource = resource
        self._cache = cache
        self._check = check
        self._patience = patience
        self._watch = watch and self._is_coroutine
        self._random = random or Random()
        self.memory = memory or Memory(self.options, random=self._random)
        self._scheduler = self._new_scheduler()
        self._call: Callable[..., Any] = function
        self._resource: OpenResource | None = None
        self._opened = False
        self._run: Run | None = None
        self._busy = self._drained = False
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        if self._open_resource is not None:
            options = self.options
            resource = OpenResource(
                self._open_resource, owner=options.name, timeout=options.resource_timeout
            )
            opened = await resource.open()
            self._resource = resource
            function = self._function
            self._call = lambda argument: function(argument, opened)
        self._opened = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call = self._function
        self._opened = False
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()  # its calls use what is closed next
            await asyncio.wait([self._task])
        resource, self._resource = self._resource, None
        if resource is not None:
            await resource.close(error)

    async def run(self, source: Source, sink: Sink) -> None:
        """Process a source to its end, or raise what ended the run before.

        What a failed or cancelled run had taken in and not finished is in `given_back`. An
        engine makes one run at a time; several engines may run on one loop.
        """
        if self._busy:
            raise ThulawaError(f"{self.name} is running already: make an engine for each run")
        if self._open_resource is not None and not self._opened:
            raise ThulawaError(f"{self.name} needs its resource: use 'async with Engine(...)'")
        self._scheduler = self._new_scheduler()
        run = self._run = Run(
            self._scheduler,
            self._workers,
            source,
            sink,
            patience=self._patience,
            check=self._check,
        )
        self._busy = True
        self._task = asyncio.current_task()
        try:
            with self._watchdog():
                await run.go(drained=self._drained)
        finally:
            self._busy = self._drained = False
            self._task = None

    async def map(
        self, records: Iterable[Record] | AsyncIterable[Record]
    ) -> AsyncGenerator[Outcome, None]:
        """Process records; give their outcomes in the order of the contract."""
        channel = Channel()
        task = asyncio.ensure_future(self.run(source_of(records), channel))
        task.add_done_callback(channel.close)
        try:
            async for outcome in channel:
                yield outcome
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])
            if self._run is not None:
                self._run.keep(channel.read)

    def drain(self) -> None:
        """Take in nothing more; the run ends when what was taken in is finished.

        Where none is under way yet, the next one takes in nothing.
        """
        if self._busy and self._run is not None:
            self._run.drain()
        else:
            self._drained = True

    def statistics(self) -> Statistics:
        """Give a picture of this moment."""
        return self._scheduler.statistics(self._run.now() if self._busy and self._run else None)

    def residence_by_lane(self) -> dict[str, dict[int, int]]:
        """Give the histogram of each lane's residence in the last run, to be merged with others."""
        lanes = zip(self.options.lanes.lanes, self._scheduler.by_lane, strict=True)
        return {lane.name: histogram.counts() for lane, histogram in lanes}

    @property
    def given_back(self) -> list[Record]:
        """What the last run had taken in and not finished when it failed or was cancelled."""
        return [] if self._run is None else self._run.given_back

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self._inner, "__qualname__", type(self._inner).__name__)

    def _watchdog(self) -> AbstractContextManager[object]:
        if not self._watch:
            return nullcontext()
        return Watchdog(self.name, getattr(self._inner, "__code__", None))

    def _capped(self, options: Options, threads: int) -> Options:
        """Let there be no more calls at once than threads."""
        adaptive = options.adaptive
        if adaptive is not None and adaptive.maximum > threads:
            top = {name: min(getattr(adaptive, name), threads) for name in ("minimum", "initial")}
            options = replace(options, adaptive=replace(adaptive, maximum=threads, **top))
        observes = adaptive is None or adaptive.mode == "observe"
        if observes and options.in_flight > threads:
            _log.info("%s is a plain function: %d calls at once, not %d; see Engine.threads",
                      self.name, threads, options.in_flight)  # fmt: skip
            options = replace(options, in_flight=threads)
        return options

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.options, memory=self.memory, cache=self._cache, random=self._random)

    def _workers(self, report: Report) -> Workers:
        argument = argument_maker(self._argument, batched=self.options.batch is not None)
        if self._is_coroutine:
            return CoroutineWorkers(self._call, argument, report)
        return ThreadWorkers(self._call, argument, report, self.name)


def _check_parts(function: object, options: object, threads: object, patience: object) -> None:
    """Refuse what would fail later with an error that says nothing."""
    if not callable(function):
        raise ConfigurationError(f"the function must be callable, not {function!r}")
    if options is not None and not isinstance(options, Options):
        raise ConfigurationError(
            f"options must be made with Options(...), not a {type(options).__name__}"
        )
    if type(threads) is not int or threads < 1:
        raise ConfigurationError(f"threads must be a whole number from 1 on, not {threads!r}")
    if not isinstance(patience, int | float) or not patience >= 0:
        raise ConfigurationError(f"patience is seconds, not negative, not {patience!r}")


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function with code of its own: not a partial, not an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return getattr(function, "__call__", function)  # noqa: B004 the method itself is wanted
