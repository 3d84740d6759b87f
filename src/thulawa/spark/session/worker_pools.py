"""Python workers that a part of a query does not share with others.

Spark hands out the worker that has been idle longest among those of the same environment. Sources,
sinks and whatever stands between them would meet another worker in each batch, one that lacks what
they have left in theirs: stores, opened resources, caches. So what leaves something has an
environment, and with it workers, of its own. Spark keeps a process for each until it ends: let the
names be few.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

from pyspark.sql import SparkSession

__all__ = ["WorkerPoolSlot", "dedicated_workers"]

_VARIABLE = "THULAWA_WORKERS"
_naming = RLock()  # the environment is one for all threads


@contextmanager
def dedicated_workers(spark: SparkSession, name: str) -> Iterator[None]:
    """Let functions that are handed to Spark meanwhile run in workers of this name alone."""
    environment = spark.sparkContext.environment
    with _naming:
        before = environment.get(_VARIABLE)
        environment[_VARIABLE] = name
        try:
            yield
        finally:
            if before is None:
                del environment[_VARIABLE]
            else:
                environment[_VARIABLE] = before


class WorkerPoolSlot:
    """The smallest number that nobody has, for as long as it is held.

    >>> first, second = WorkerPoolSlot(), WorkerPoolSlot()
    >>> first.number < second.number
    True
    >>> first.release()
    >>> WorkerPoolSlot().number == first.number
    True
    """

    _lock = Lock()
    _taken: set[int] = set()  # noqa: RUF012 of all seats

    def __init__(self) -> None:
        with self._lock:
            self.number = next(n for n in range(len(self._taken) + 1) if n not in self._taken)
            self._taken.add(self.number)
            self._held = True

    def release(self) -> None:
        """Let another have the number; once left, it is no longer this one's to leave."""
        with self._lock:
            if self._held:
                self._taken.discard(self.number)
            self._held = False
