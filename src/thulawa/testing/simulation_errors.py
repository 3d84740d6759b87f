"""What a simulation raises when the run itself, not the code under test, went wrong.

::

    ThulawaError
    └── SimulationError
        ├── Stalled       something is awaited that can no longer happen
        ├── Overrun       more virtual time or more loop iterations than the run was given
        └── Unretrieved   a task or callback failed and nobody looked at its exception

    AssertionError
    └── OrderViolation    the run broke its order contract (see `thulawa.testing.OrderOracle`)

`Stalled` and `Overrun` are raised out of the event loop and never into a task: no
``except Exception`` of the code under test can swallow them. They list the tasks and the
line each of them waits at, innermost last, since that is what one would otherwise have to
find with a debugger. ``Task.get_stack`` does not help there: for a suspended coroutine it
gives the outermost frame only, so the chain of awaits is walked by hand.
"""

import asyncio
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from thulawa.core.errors import ThulawaError

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
    """The root of what a simulation raises."""


class Stalled(SimulationError):
    """Something is awaited, but nothing is ready and no timer is left: it would hang."""


class Overrun(SimulationError):
    """The run used up its virtual time (``until``) or its loop iterations."""


class Unretrieved(SimulationError):
    """Tasks or callbacks failed and their exceptions would have gone unseen."""


class OrderViolation(AssertionError):
    """The run broke its order contract; the message tells the story of the key."""


def describe_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    """Say, one paragraph a task, which tasks wait and at which line."""
    waiting = sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
    told = [_describe(task) for task in waiting[:_TASKS_SHOWN]]
    if len(waiting) > _TASKS_SHOWN:
        told.append(f"  … and {len(waiting) - _TASKS_SHOWN} more")
    return "\n".join(told) or "  (no task is left)"


def _describe(task: "asyncio.Task[Any]") -> str:
    frames = traceback.StackSummary.extract(_frames(task.get_coro()))
    place = "".join(frames.format()).rstrip().replace("\n", "\n  ")
    return f"  {task.get_name()} waits at\n  {place or '  (an unknown place)'}"


def _frames(awaited: object) -> Iterator[tuple[FrameType, int]]:
    """Follow what awaits what, from the task's coroutine inwards."""
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            yield frame, frame.f_lineno
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(thing: object, *names: str) -> object:
    return next((getattr(thing, name) for name in names if hasattr(thing, name)), None)
