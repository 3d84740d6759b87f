"""An asyncio event loop whose time is a number and whose accidents come from a seed.

The idea is that of a discrete-event simulation: as long as something is ready time stands
still, and when nothing is, it jumps to the next timer. An hour of back-off costs
microseconds, a race between two timers has one outcome per seed, and code that waits for
something impossible is reported instead of hanging.

Invariants:

- One seed, one run. Everything that differs from run to run in plain asyncio is pinned: the
  clock starts at 0 and moves by timers alone, callbacks run in an order drawn from the seed,
  tasks are numbered per loop, and tasks and futures hash by that number, so that sets of
  them (``asyncio.wait``, ``TaskGroup``) iterate alike in every run.
- No timer fires early. asyncio fires timers up to one clock tick before their time; with a
  clock that stands still, code that then finds nothing due and sets the timer again would
  spin for ever.
- Callbacks that become ready in the same iteration run in shuffled order, as trio does with
  its batches. asyncio promises first in, first out for ``call_soon``; real traffic promises
  nothing of the kind, and order that must hold should not rest on it.

The loop is the stock selector loop with one seam: its selector calls back into `_turn`
where it would wait. Copying ``_run_once`` was tried and dropped: it is longer, and it drifts
from one Python version to the next, while the names used here (``_ready``, ``_scheduled``)
have been there since Python 3.4.

Threads live in real time. While the loop knows of work outside (`run_in_executor` and
``asyncio.to_thread`` tell it, `VirtualTimeLoop.outside_work` does for the rest) it really
waits, up to ``patience`` seconds without news, before time moves on. Thread work therefore
takes no virtual time, and the order in which several threads answer is not the seed's.
Real sockets work as far as polling goes, but nobody waits for them.
"""

import asyncio
import heapq
import math
import selectors
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from thulawa.testing.simulation_errors import Overrun, Stalled, describe_tasks

__all__ = ["VirtualTimeLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Events = list[tuple[selectors.SelectorKey, int]]
_Poll = Callable[[float | None], _Events]

# Timers this close were meant for the same moment: 0.1 + 0.2 and 0.3 race each other.
_SAME_MOMENT = 1e-9


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Run asyncio code in virtual time, in an order drawn from ``seed``.

    Time begins at 0. The run is cut off with `Overrun` beyond ``until`` virtual seconds or
    ``max_iterations`` turns of the loop, and with `Stalled` when nothing can happen any more.

    >>> loop = VirtualTimeLoop(seed=1)
    >>> loop.run_until_complete(asyncio.sleep(3600))
    >>> loop.time()
    3600.0
    >>> loop.close()
    """

    # Of asyncio's own, declared for the type checker.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(
        self,
        seed: int,
        *,
        until: float = math.inf,
        max_iterations: int = 1_000_000,
        patience: float = 5.0,
    ) -> None:
        self.seed = seed
        self.until = until
        self.max_iterations = max_iterations
        self.patience = patience
        self.iterations = 0
        self.complaints: list[dict[str, Any]] = []
        self._now = 0.0
        self._random = Random(f"{seed}/loop")
        self._outside = 0
        self._numbers = count(1)
        self._born: weakref.WeakValueDictionary[int, asyncio.Future[Any]]
        self._born = weakref.WeakValueDictionary()
        super().__init__(_TurnSelector(self._turn))
        self._clock_resolution = 0.0
        self.set_task_factory(_make_task)
        self.set_exception_handler(_complain)

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._now

    @contextmanager
    def outside_work(self) -> Iterator[None]:
        """Say that a thread is at work which will report by ``call_soon_threadsafe``.

        Enter and leave it on the loop's own thread, around the await for the report.
        """
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a plain function on a thread; the loop waits for it in real time."""
        future = super().run_in_executor(executor, func, *args)
        working = self.outside_work()
        working.__enter__()
        future.add_done_callback(lambda _: working.__exit__(None, None, None))
        return future

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future that hashes by its number, so that sets of futures keep their order."""
        return _Future(self)

    def unretrieved(self) -> list[tuple[str, BaseException | None]]:
        """Tell each failure that nobody has looked at: what failed, and its exception.

        What is told once is not told again, nor logged by asyncio later.
        """
        failures = [(c["message"], c.get("exception")) for c in self.complaints]
        self.complaints.clear()
        for future in list(self._born.values()):
            # asyncio complains when such a future is collected; a run must not depend on
            # when that is. The flag means: has an exception that was never asked for.
            if getattr(future, "_log_traceback", False):
                name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
                failures.append((f"{name} failed", future.exception()))
        return failures

    def _number(self, future: "asyncio.Future[Any]") -> int:
        number = next(self._numbers)
        self._born[number] = future
        return number

    def _turn(self, poll: _Poll) -> _Events:
        """Do, in place of waiting, what makes the next callbacks ready; then shuffle them."""
        self._count_iteration()
        events = poll(0)
        if not (events or self._ready or self._stopping):
            events = self._hear_from_outside(poll)
            if not (events or self._ready):
                self._jump()
        self._collect_due()
        self._shuffle()
        return events

    def _count_iteration(self) -> None:
        self.iterations += 1
        if self.iterations > self.max_iterations:
            raise Overrun(self._story(f"after {self.max_iterations} loop iterations"))

    def _hear_from_outside(self, poll: _Poll) -> _Events:
        return poll(self.patience) if self._outside else []

    def _jump(self) -> None:
        # asyncio has dropped cancelled timers from the head before it polls.
        when = self._scheduled[0].when() if self._scheduled else math.inf
        if when == math.inf:
            silent = f", {self._outside} calls on threads still silent" if self._outside else ""
            raise Stalled(self._story(f"nothing is ready and no timer is left{silent}"))
        if when > self.until:
            raise Overrun(self._story(f"the next timer, at {when} s, is beyond {self.until} s"))
        self._now = max(self._now, when)

    def _collect_due(self) -> None:
        horizon = self._now + _SAME_MOMENT
        while self._scheduled and self._scheduled[0].when() <= horizon:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001 asyncio's own flag
            self._now = max(self._now, timer.when())
            self._ready.append(timer)

    def _shuffle(self) -> None:
        # Taken from the left and put back there, since other threads append on the right.
        batch = [self._ready.popleft() for _ in range(len(self._ready))]
        self._random.shuffle(batch)
        self._ready.extendleft(batch)

    def _story(self, what: str) -> str:
        return f"{what}; virtual time {self._now} s\n{describe_tasks(asyncio.all_tasks(self))}"


class _TurnSelector(selectors.DefaultSelector):
    def __init__(self, turn: Callable[[_Poll], _Events]) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> _Events:  # noqa: ARG002 the loop decides
        return self._turn(super().select)


class _Future(asyncio.Future[T]):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._number = loop._number(self)  # noqa: SLF001 one module, one friendship
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    def __init__(self, coro: Any, loop: VirtualTimeLoop, name: str | None, **kwargs: Any) -> None:
        # Before asyncio's own set-up, which puts the task into a set.
        self._number = loop._number(self)  # noqa: SLF001 one module, one friendship
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", **kwargs)

    def __hash__(self) -> int:
        return self._number


def _make_task(loop: Any, coro: Any, name: str | None = None, **kwargs: Any) -> "_Task[Any]":
    return _Task(coro, loop, name, **kwargs)


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualTimeLoop)
    loop.complaints.append(context)
