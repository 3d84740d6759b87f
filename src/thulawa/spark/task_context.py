"""The Spark task that runs in this worker process."""

from dataclasses import dataclass
from typing import NamedTuple

from pyspark import TaskContext

from thulawa.errors import ThulawaError
from thulawa.spark.internals import streaming_batch


class StreamingTask(NamedTuple):
    """A task of a streaming query: query id, micro-batch number, partition number."""

    query: str
    batch: int
    partition: int


@dataclass(frozen=True, slots=True)
class SparkTask:
    """A Spark task: partition number and, in a streaming query, query id and micro-batch number."""

    partition: int = 0
    query: str | None = None
    batch: int | None = None

    @property
    def streaming(self) -> StreamingTask | None:
        """This task as one of a streaming query; None if it is not."""
        if self.query is None or self.batch is None:
            return None
        return StreamingTask(self.query, self.batch, self.partition)


def current_task() -> SparkTask | None:
    """Return the task that runs in this process; None outside Spark."""
    context = TaskContext.get()
    if context is None:
        return None
    return SparkTask(context.partitionId(), *(streaming_batch(context) or ()))


def streaming_task() -> StreamingTask:
    """Return the streaming task that runs in this process; raise `ThulawaError` outside a query."""
    task = current_task()
    streaming = None if task is None else task.streaming
    if streaming is None:
        raise ThulawaError(
            "this sink writes micro-batches of streaming queries; use df.writeStream"
        )
    return streaming
