"""The embedded log as a Spark sink: each batch exactly once.

Every Spark task writes its records and the number of the batch in one transaction, under a
marker of the query and the task. A batch that is run again after a failure finds its number
there and writes nothing. The query's id comes from its checkpoint, so this holds over restarts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from thulawa.core.errors import ConfigurationError
from thulawa.log import Log, ProducerRecord

__all__ = ["LogBatchWriter", "LogStreamWriter", "LogWriter"]

_COLUMNS = ("key", "value", "topic", "partition", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class LogWriter:
    """What batch and streaming writers have in common."""

    address: str
    topic: str | None

    @classmethod
    def of(cls, options: dict[str, str], schema: StructType) -> "LogWriter":
        """Read the options of the sink and check the columns."""
        address, topic = options.get("path"), options.get("topic")
        if not address:
            raise ConfigurationError('the sink needs a path: .start("file:./topics")')
        if topic is None and "topic" not in schema.names:
            raise ConfigurationError('the sink needs .option("topic", "…") or a column topic')
        if "value" not in schema.names:
            raise ConfigurationError(f"the sink needs a column value; there are {schema.names}")
        if unknown := set(schema.names) - set(_COLUMNS):
            raise ConfigurationError(
                f"the sink does not know the columns {sorted(unknown)}; it takes {_COLUMNS}"
            )
        return cls(address, topic)

    def records(self, batches: Iterator[pa.RecordBatch]) -> dict[str, list[ProducerRecord]]:
        """Sort rows by topic."""
        sorted_out: dict[str, list[ProducerRecord]] = {}
        for batch in batches:
            columns = {name: _values(batch, name) for name in _COLUMNS}
            topics = columns.pop("topic")
            for topic, key, value, partition, timestamp, headers in zip(
                topics, *(columns[name] for name in _COLUMNS if name != "topic"), strict=True
            ):
                record = ProducerRecord(
                    key, value, tuple((one["key"], one["value"]) for one in headers or ()),
                    timestamp, partition,
                )  # fmt: skip
                sorted_out.setdefault(topic or self.topic or "", []).append(record)
        return sorted_out


class LogBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; a task that is run again writes again."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task."""
        with Log(self._writer.address) as log:
            log.append(self._writer.records(iterator))
        return WriterCommitMessage()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query exactly once."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task and the number of its batch."""
        context: Any = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        with Log(self._writer.address) as log:
            log.append(
                self._writer.records(iterator), marker=(query, context.partitionId()), batch=batch
            )
        return WriterCommitMessage()


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    place = batch.schema.get_field_index(name)
    if place < 0:
        return [None] * batch.num_rows
    column = batch.column(place)
    if name in ("key", "value"):
        column = column.cast(pa.binary())
    elif name == "timestamp":
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
