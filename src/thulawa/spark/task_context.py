"""Which task of Spark this is; asked inside a worker, without importing pyspark."""

import sys
from dataclasses import dataclass
from typing import NamedTuple

from thulawa.core.errors import ThulawaError
from thulawa.spark.internals import streaming_batch

__all__ = ["Streamed", "Task", "current_task", "streamed_task"]


class Streamed(NamedTuple):
    """A task of a streaming query: the query's id, the number of the batch, the partition."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True, slots=True)
class Task:
    """A partition and, in a streaming query, the query's id and the number of its batch."""

    partition: int = 0
    query: str | None = None
    batch: int | None = None

    @property
    def streamed(self) -> Streamed | None:
        """The same where it belongs to a streaming query."""
        if self.query is None or self.batch is None:
            return None
        return Streamed(self.query, self.batch, self.partition)


def current_task() -> Task | None:
    """Give the task that runs here; None outside Spark."""
    spark = sys.modules.get("pyspark")  # a worker of Spark has loaded it already
    context = None if spark is None else spark.TaskContext.get()
    if context is None:
        return None
    return Task(context.partitionId(), *(streaming_batch(context) or ()))


def streamed_task() -> Streamed:
    """Give the task that runs here, which must be one of a streaming query."""
    task = current_task()
    streamed = None if task is None else task.streamed
    if streamed is None:
        raise ThulawaError("this is for streaming queries alone: it writes a batch exactly once")
    return streamed
