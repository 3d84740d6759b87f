"""Which task of Spark this is; asked inside a worker, without importing pyspark."""

import sys
from dataclasses import dataclass

__all__ = ["Task", "current_task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A partition and, in a streaming query, the query's id and the number of its batch."""

    partition: int = 0
    query: str | None = None
    batch: int | None = None


def current_task() -> Task | None:
    """Give the task that runs here; None outside Spark."""
    spark = sys.modules.get("pyspark")  # a worker of Spark has loaded it already
    context = None if spark is None else spark.TaskContext.get()
    if context is None:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        return Task(context.partitionId())
    return Task(context.partitionId(), query, int(batch))
