"""An asyncio event loop in virtual time, with an execution order drawn from a seed.

It is a discrete-event simulation: while something is ready, time stands still; when nothing is, it
jumps to the next timer. An hour of backoff costs microseconds, a race between two timers has one
outcome per seed, and code that waits for something impossible is reported instead of hanging:
`Stalled` and `Overrun` are raised out of the loop and never into a task, so no ``except Exception``
of the code under test can swallow them.

Invariants:

- One seed, one run. The clock starts at 0 and moves by timers alone, callbacks run in an order
  drawn from the seed, and tasks and futures hash by a number per loop, so that sets of them
  (``asyncio.wait``, ``TaskGroup``) iterate alike in every run.
- No timer fires early, as in asyncio up to one clock tick: with a clock that stands still, code
  that then finds nothing due and sets the timer again would spin for ever.
- Callbacks that become ready in the same iteration run in shuffled order, as in trio.

The loop is the standard selector loop with one change: its selector calls `_turn` where it would
wait. A copy of ``_run_once`` would differ between Python versions, while the names used here
(``_ready``, ``_scheduled``) have existed since Python 3.4.

Threads run in real time. While thread work is registered (by `run_in_executor`, or by
`VirtualTimeLoop.thread_work`) the loop waits in real time, up to ``thread_timeout`` seconds without
an event, before virtual time advances. The order in which several threads finish does not depend on
the seed. Real sockets are polled, but the loop does not wait for them.
"""

import asyncio
import heapq
import math
import selectors
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import count
from random import Random
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from thulawa.errors import ThulawaError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Events = list[tuple[selectors.SelectorKey, int]]
_Poll = Callable[[float | None], _Events]

# Timers this close are due at the same time: 0.1 + 0.2 and 0.3 race each other.
_SAME_MOMENT = 1e-9
_TASKS_SHOWN = 10


class SimulationError(ThulawaError):
    """The base class of the errors of a simulation."""


class Stalled(SimulationError):
    """A task waits, but nothing is ready and no timer is left: it would hang."""


class Overrun(SimulationError):
    """The run exceeded its virtual time (``until``) or its loop iterations."""


class Unretrieved(SimulationError):
    """The exceptions of tasks or callbacks were never retrieved."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Run asyncio code in virtual time, in an order drawn from ``seed``.

    Time begins at 0. The run raises `Overrun` beyond ``until`` virtual seconds or
    ``max_iterations`` iterations of the loop, and `Stalled` when nothing can happen any more.

    >>> loop = VirtualTimeLoop(seed=1)
    >>> loop.run_until_complete(asyncio.sleep(3600))
    >>> loop.time()
    3600.0
    >>> loop.close()
    """

    # asyncio's attributes, declared for the type checker.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(
        self,
        seed: int,
        *,
        until: float = math.inf,
        max_iterations: int = 1_000_000,
        thread_timeout: float = 5.0,
    ) -> None:
        self.seed = seed
        self.until = until
        self.max_iterations = max_iterations
        self.thread_timeout = thread_timeout
        self.iterations = 0
        self.unhandled: list[dict[str, Any]] = []
        self._now = 0.0
        self._random = Random(f"{seed}/loop")
        self._thread_calls = 0
        self._numbers = count(1)
        self._futures: weakref.WeakValueDictionary[int, asyncio.Future[Any]]
        self._futures = weakref.WeakValueDictionary()
        super().__init__(_TurnSelector(self._turn))
        self._clock_resolution = 0.0
        self.set_task_factory(_make_task)
        self.set_exception_handler(_collect_unhandled)

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was created."""
        return self._now

    @contextmanager
    def thread_work(self) -> Iterator[None]:
        """Register work of a thread that will call ``call_soon_threadsafe``.

        Enter and exit the context on the loop's thread, around the await for the result.
        """
        self._thread_calls += 1
        try:
            yield
        finally:
            self._thread_calls -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a plain function on a thread; the loop waits for it in real time."""
        future = super().run_in_executor(executor, func, *args)
        working = self.thread_work()
        working.__enter__()
        future.add_done_callback(lambda _: working.__exit__(None, None, None))
        return future

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future that hashes by its number, so that sets of futures have a fixed order."""
        return _Future(self)

    def unretrieved(self) -> list[tuple[str, BaseException | None]]:
        """Return the exceptions that were never retrieved, each with a description.

        They are returned once, and not logged by asyncio later.
        """
        failures = [(c["message"], c.get("exception")) for c in self.unhandled]
        self.unhandled.clear()
        for future in list(self._futures.values()):
            # asyncio logs such a future when it is garbage-collected; a run must not depend on
            # when that is. The flag means that the exception was never retrieved.
            if getattr(future, "_log_traceback", False):
                name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
                failures.append((f"{name} failed", future.exception()))
        return failures

    def _number(self, future: "asyncio.Future[Any]") -> int:
        number = next(self._numbers)
        self._futures[number] = future
        return number

    def _turn(self, poll: _Poll) -> _Events:
        """Instead of waiting, advance time until callbacks are ready, and shuffle them."""
        self.iterations += 1
        if self.iterations > self.max_iterations:
            raise Overrun(self._report(f"after {self.max_iterations} loop iterations"))
        events = poll(0)
        if not (events or self._ready or self._stopping):
            events = poll(self.thread_timeout) if self._thread_calls else []
            if not (events or self._ready):
                self._jump()
        self._collect_due()
        # Removed on the left and inserted there, because other threads append on the right.
        batch = [self._ready.popleft() for _ in range(len(self._ready))]
        self._random.shuffle(batch)
        self._ready.extendleft(batch)
        return events

    def _jump(self) -> None:
        # asyncio has dropped cancelled timers from the head before it polls.
        when = self._scheduled[0].when() if self._scheduled else math.inf
        if when == math.inf:
            calls = self._thread_calls
            threads = f", {calls} calls on threads are silent" if calls else ""
            raise Stalled(self._report(f"nothing is ready and no timer is left{threads}"))
        if when > self.until:
            raise Overrun(self._report(f"the next timer, at {when} s, is beyond {self.until} s"))
        self._now = max(self._now, when)

    def _collect_due(self) -> None:
        horizon = self._now + _SAME_MOMENT
        while self._scheduled and self._scheduled[0].when() <= horizon:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001 asyncio's own flag
            self._now = max(self._now, timer.when())
            self._ready.append(timer)

    def _report(self, what: str) -> str:
        return f"{what}; virtual time {self._now} s\n{_describe_tasks(asyncio.all_tasks(self))}"


class _TurnSelector(selectors.DefaultSelector):
    def __init__(self, turn: Callable[[_Poll], _Events]) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> _Events:  # noqa: ARG002 the loop decides
        return self._turn(super().select)


class _Future(asyncio.Future[T]):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._number = loop._number(self)  # noqa: SLF001 same module
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    def __init__(self, coro: Any, loop: VirtualTimeLoop, name: str | None, **kwargs: Any) -> None:
        # Before asyncio's own initialization, which adds the task to a set.
        self._number = loop._number(self)  # noqa: SLF001 same module
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", **kwargs)

    def __hash__(self) -> int:
        return self._number


def _make_task(loop: Any, coro: Any, name: str | None = None, **kwargs: Any) -> "_Task[Any]":
    return _Task(coro, loop, name, **kwargs)


def _collect_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualTimeLoop)
    loop.unhandled.append(context)


def _describe_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    waiting = sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
    shown = [_describe(task) for task in waiting[:_TASKS_SHOWN]]
    if len(waiting) > _TASKS_SHOWN:
        shown.append(f"  … and {len(waiting) - _TASKS_SHOWN} more")
    return "\n".join(shown) or "  (no task is left)"


def _describe(task: "asyncio.Task[Any]") -> str:
    frames = traceback.StackSummary.extract(_frames(task.get_coro()))
    stack = "".join(frames.format()).rstrip().replace("\n", "\n  ")
    return f"  {task.get_name()} waits at\n  {stack or '  (an unknown line)'}"


def _frames(awaited: object) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the chain of awaits, from the task's coroutine inwards.

    ``Task.get_stack`` returns only the outermost frame of a suspended coroutine.
    """
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            yield frame, frame.f_lineno
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(thing: object, *names: str) -> object:
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)
