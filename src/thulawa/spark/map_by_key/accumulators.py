"""Spark accumulators in workers that retain objects between tasks.

Spark creates an accumulator for each task when it unpickles the function, and collects it at the
end of the task. An object that outlives its task, such as an open client, still refers to the
accumulator of the task that created it, and what it adds would be lost. So all accumulators with
one id in a worker share the value of the current task. Calls run on many threads, for which Spark's
accumulators are not safe: here adding is atomic.
"""

from threading import RLock
from typing import Any
from weakref import WeakSet

from pyspark.accumulators import Accumulator

from thulawa.spark.internals import task_accumulators

_adding = RLock()  # a signal handler or __del__ may add while its thread is adding
_known: dict[int, WeakSet[Accumulator[Any]]] = {}  # by id, while they are referenced


class _Atomic(Accumulator[Any]):
    def add(self, term: Any) -> None:
        with _adding:
            super().add(term)


def adopt_accumulators() -> None:
    """Make accumulators of earlier tasks count in this one; call it when a task begins."""
    for number, accumulator in task_accumulators():
        earlier = _known.setdefault(number, WeakSet())
        for one in earlier:
            one.__dict__ = accumulator.__dict__
        accumulator.__class__ = _Atomic
        earlier.add(accumulator)
    for number in [number for number, earlier in _known.items() if not earlier]:
        del _known[number]
