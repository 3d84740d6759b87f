"""Spark's accumulators inside workers that keep objects from task to task.

Spark makes an accumulator anew for each task, when it unpickles the function, and collects those
of the task at its end. An object that outlives its task, such as an opened client, still holds the
accumulator of the task that made it: what it adds would be lost. So all accumulators of one id in a
worker share one value, that of the current task. Calls run on many threads, which Spark's own
accumulators are not made for: here adding is atomic.
"""

from threading import Lock
from typing import Any
from weakref import WeakSet

from pyspark.accumulators import Accumulator

from thulawa.spark.internals import task_accumulators

__all__ = ["adopt_accumulators"]

_adding = Lock()
_known: dict[int, WeakSet[Accumulator[Any]]] = {}  # those of each id that are still referenced


class _Atomic(Accumulator[Any]):
    """An accumulator that several threads can add to."""

    def add(self, term: Any) -> None:
        """Add a term."""
        with _adding:
            super().add(term)


def adopt_accumulators() -> None:
    """Make the accumulators of earlier tasks count in this one. Call it when a task begins."""
    for number, accumulator in task_accumulators():
        earlier = _known.setdefault(number, WeakSet())
        for one in earlier:
            one.__dict__ = accumulator.__dict__
        accumulator.__class__ = _Atomic
        earlier.add(accumulator)
    for number in [number for number, earlier in _known.items() if not earlier]:
        del _known[number]
