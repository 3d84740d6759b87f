"""Dedicated Python worker pools for operators that cache state.

Of the workers with the same environment, Spark assigns the one that has been idle longest. An
operator would get another worker in each micro-batch, without the stores, open resources and caches
that it left in the previous one. So operators that cache state run in an environment, and thus a
worker pool, of their own. Spark keeps the processes of each pool until it ends, so pool names
should be few.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

from pyspark.sql import SparkSession

_VARIABLE = "THULAWA_WORKERS"
_naming = RLock()  # the environment is one for all threads


@contextmanager
def dedicated_workers(spark: SparkSession, name: str) -> Iterator[None]:
    """Run the functions that are passed to Spark in this context in the worker pool of a name."""
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
    """The smallest free number of a worker pool, held until it is released.

    >>> first, second = WorkerPoolSlot(), WorkerPoolSlot()
    >>> first.number < second.number
    True
    >>> first.release()
    >>> WorkerPoolSlot().number == first.number
    True
    """

    _lock = Lock()
    _taken: set[int] = set()  # noqa: RUF012 shared by all slots

    def __init__(self) -> None:
        with self._lock:
            self.number = next(n for n in range(len(self._taken) + 1) if n not in self._taken)
            self._taken.add(self.number)
            self._held = True

    def release(self) -> None:
        """Release the number; a second call does nothing."""
        with self._lock:
            if self._held:
                self._taken.discard(self.number)
            self._held = False
