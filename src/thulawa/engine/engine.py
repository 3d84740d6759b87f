"""`Engine`: run a function over records with the options of the scheduler."""

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
from typing import Any, Self

from thulawa.engine.driver import OutcomeSink, Run, WorkSource
from thulawa.engine.options import Options
from thulawa.engine.resources import OpenResource, check_resource
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.sources import Channel, source_of
from thulawa.engine.state import LearnedState
from thulawa.engine.statistics import Statistics
from thulawa.engine.threads import ThreadWorkers
from thulawa.engine.watchdog import Watchdog
from thulawa.engine.work_items import Outcome, WorkItem
from thulawa.engine.workers import CallListener, CoroutineWorkers, Workers, argument_maker
from thulawa.errors import ConfigurationError, ThulawaError

_log = logging.getLogger("thulawa.engine")


class Engine:
    """Run a function over records, many keys at once, each key in order, nothing lost.

    ``function`` is called with a `WorkItem`, or with what ``argument`` returns for it. With `Batch`
    it is called with a list of them and returns a list: for each a result or an exception. A
    coroutine function runs on the event loop, a plain one on threads, at most ``threads``.

    ``resource`` is a function without arguments that returns an async context manager (an HTTP
    session, a database pool). It is opened when the engine is entered, closed when it is exited,
    and passed to the function as its second argument; ``Options.resource_timeout`` bounds both.
    ``cache`` is any mapping; with `SingleFlight` it stores the results. ``check`` is called with
    every result and raises to reject it. A run that ends waits up to ``stop_timeout`` seconds for
    calls, source and sink to stop. ``watchdog`` warns of a coroutine function that blocks the loop.
    ``learned``, of an earlier engine with the same options, carries its limits and failing keys on.

    >>> import asyncio
    >>> async def shout(record):
    ...     await asyncio.sleep(0.001)
    ...     return record.value.upper()
    >>> async def main():
    ...     records = [
    ...         WorkItem(offset, key, value)
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
        argument: Callable[[WorkItem], Any] | None = None,
        resource: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        cache: MutableMapping[Hashable, Any] | None = None,
        check: Callable[[Any], None] | None = None,
        threads: int = 64,
        stop_timeout: float = 5.0,
        watchdog: bool = True,
        random: Random | None = None,
        learned: LearnedState | None = None,
    ) -> None:
        _check_arguments(function, options, threads, stop_timeout)
        self._function = function
        self._inner = _unwrapped(function)
        self._is_coroutine = inspect.iscoroutinefunction(self._inner)
        self.options = options or Options()
        if not self._is_coroutine:
            self.options = self._capped(self.options, threads)
        if cache is not None and self.options.single_flight is None:
            raise ConfigurationError("a cache needs Options(single_flight=SingleFlight(by=...))")
        self._argument = argument
        if resource is not None:
            check_resource(resource, self.options.name)
        self._open_resource = resource
        self._cache = cache
        self._check = check
        self._stop_timeout = stop_timeout
        self._uses_watchdog = watchdog and self._is_coroutine
        self._random = random or Random()
        self.learned = learned or LearnedState(self.options, self._random)
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

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._call = self._function
        self._opened = False
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()  # its calls use the resource
            await asyncio.wait([self._task])
        resource, self._resource = self._resource, None
        if resource is not None:
            await resource.close(error)

    async def run(self, source: WorkSource, sink: OutcomeSink) -> None:
        """Process a source to its end, or raise what ended the run before.

        The records that a failed or cancelled run left are in `unfinished`. An engine makes one
        run at a time; several engines may run on one loop.
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
            stop_timeout=self._stop_timeout,
            check=self._check,
        )
        self._busy = True
        self._task = asyncio.current_task()
        try:
            with self._watchdog():
                await run.execute(drained=self._drained)
        finally:
            self._busy = self._drained = False
            self._task = None

    async def map(
        self, records: Iterable[WorkItem] | AsyncIterable[WorkItem]
    ) -> AsyncGenerator[Outcome, None]:
        """Process records; yield their outcomes in the emit order."""
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
                self._run.mark_delivered(channel.delivered)

    def drain(self) -> None:
        """Stop intake; the run ends when all records that arrived are finished.

        If the engine is not running, its next run reads nothing.
        """
        if self._busy and self._run is not None:
            self._run.drain()
        else:
            self._drained = True

    def statistics(self) -> Statistics:
        """Return a snapshot of this moment."""
        return self._scheduler.statistics(self._run.now() if self._busy and self._run else None)

    def residence_by_lane(self) -> dict[str, dict[int, int]]:
        """Return the residence histogram of each lane in the last run."""
        histograms = self._scheduler.state.residence_by_lane
        lanes = zip(self.options.lanes.lanes, histograms, strict=True)
        return {lane.name: histogram.counts() for lane, histogram in lanes}

    @property
    def unfinished(self) -> list[WorkItem]:
        """The records that had arrived and were not finished when the last run ended."""
        return [] if self._run is None else self._run.unfinished

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self._inner, "__qualname__", type(self._inner).__name__)

    def _watchdog(self) -> AbstractContextManager[object]:
        if not self._uses_watchdog:
            return nullcontext()
        return Watchdog(self.name, getattr(self._inner, "__code__", None))

    def _capped(self, options: Options, threads: int) -> Options:
        """Return the options with no more calls in flight than threads."""
        adaptive = options.adaptive
        if adaptive is not None and adaptive.maximum > threads:
            top = {name: min(getattr(adaptive, name), threads) for name in ("minimum", "initial")}
            options = replace(options, adaptive=replace(adaptive, maximum=threads, **top))
        observes = adaptive is None or adaptive.mode == "observe"
        if observes and options.in_flight > threads:
            _log.info("%s is a plain function: %d calls in flight, not %d; see Engine(threads=)",
                      self.name, threads, options.in_flight)  # fmt: skip
            options = replace(options, in_flight=threads)
        return options

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.options, learned=self.learned, cache=self._cache, random=self._random)

    def _workers(self, listener: CallListener) -> Workers:
        argument = argument_maker(self._argument, batched=self.options.batch is not None)
        if self._is_coroutine:
            return CoroutineWorkers(self._call, argument, listener)
        return ThreadWorkers(self._call, argument, listener, self.name)


def _check_arguments(
    function: object, options: object, threads: object, stop_timeout: object
) -> None:
    """Raise `ConfigurationError` for arguments that would fail later with an obscure error."""
    if not callable(function):
        raise ConfigurationError(f"the function must be callable, not {function!r}")
    if options is not None and not isinstance(options, Options):
        raise ConfigurationError(
            f"options must be made with Options(...), not a {type(options).__name__}"
        )
    if type(threads) is not int or threads < 1:
        raise ConfigurationError(f"threads must be a whole number from 1 on, not {threads!r}")
    if not isinstance(stop_timeout, int | float) or not stop_timeout >= 0:
        raise ConfigurationError(f"stop_timeout must be seconds from 0 on, not {stop_timeout!r}")


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside partials, or the ``__call__`` method of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return getattr(function, "__call__", function)  # noqa: B004 the method itself is wanted
