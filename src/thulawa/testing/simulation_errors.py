"""The errors of simulations and of the order oracle.

::

    ThulawaError
    └── SimulationError
        ├── Stalled       a task awaits something that can no longer happen
        ├── Overrun       the run exceeded its virtual time or its loop iterations
        └── Unretrieved   the exception of a task or callback was never retrieved

    AssertionError
    └── OrderViolation    the order contract was violated (see `thulawa.testing.OrderOracle`)

`Stalled` and `Overrun` are raised out of the event loop and never into a task: no
``except Exception`` of the code under test can swallow them. They list the tasks and the line at
which each of them waits, innermost last. ``Task.get_stack`` returns only the outermost frame of a
suspended coroutine, so the chain of awaits is followed here.
"""

import asyncio
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from thulawa.errors import ThulawaError

__all__ = [
    "OrderViolation",
    "Overrun",
    "SimulationError",
    "Stalled",
    "Unretrieved",
    "describe_tasks",
]

_TASKS_SHOWN = 10


class SimulationError(ThulawaError):
    """The base class of the errors of a simulation."""


class Stalled(SimulationError):
    """A task waits, but nothing is ready and no timer is left: it would hang."""


class Overrun(SimulationError):
    """The run exceeded its virtual time (``until``) or its loop iterations."""


class Unretrieved(SimulationError):
    """The exceptions of tasks or callbacks were never retrieved."""


class OrderViolation(AssertionError):
    """The order contract was violated; the message lists the events of the key."""


def describe_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    """Return which tasks wait and at which lines, one paragraph per task."""
    waiting = sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
    shown = [_describe(task) for task in waiting[:_TASKS_SHOWN]]
    if len(waiting) > _TASKS_SHOWN:
        shown.append(f"  … and {len(waiting) - _TASKS_SHOWN} more")
    return "\n".join(shown) or "  (no task is left)"


def _describe(task: "asyncio.Task[Any]") -> str:
    frames = traceback.StackSummary.extract(_frames(task.get_coro()))
    place = "".join(frames.format()).rstrip().replace("\n", "\n  ")
    return f"  {task.get_name()} waits at\n  {place or '  (an unknown place)'}"


def _frames(awaited: object) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the chain of awaits, from the task's coroutine inwards."""
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            yield frame, frame.f_lineno
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(thing: object, *names: str) -> object:
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)
