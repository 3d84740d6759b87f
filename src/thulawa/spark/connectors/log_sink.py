"""The embedded log as a Spark format, with a sink that writes each micro-batch exactly once.

Every Spark task writes its records and the number of the micro-batch in one transaction, under a
marker of the query and the task. A rerun after a failure finds its number there and writes nothing.
The query's id comes from its checkpoint, so this holds across restarts. A rerun must have the same
rows in each task, so plans that move rows between tasks are rejected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.producer import newest, placed
from thulawa.core.gc_freeze import freeze_gc
from thulawa.core.markers import LastBatch
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.placement import Placing
from thulawa.spark.connectors.exactly_once import (
    LAYOUT,
    ExactlyOnceWriter,
    layout_of,
    require_complete_input,
)
from thulawa.spark.connectors.log_source import LogReader, check_names
from thulawa.spark.connectors.record_columns import check_columns, header_pairs, sink_rows
from thulawa.spark.connectors.stream_reader import SourceFormat
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.task_context import streaming_task

FORMAT = "thulawa"
_OPTIONS = ("path", "topic", "buckets", "checkpointLocation", "queryName", LAYOUT)


def log_sink(
    df: DataFrame, log: str, *, topic: str | None = None, buckets: Buckets | None = None
) -> DataStreamWriter:
    """Return a writer that writes each micro-batch of a streaming DataFrame to a log exactly once.

    Set its checkpoint and trigger, and start it::

        log_sink(rows, "file:./topics", topic="visits")
        .option("checkpointLocation", "…").start()

    ``topic`` overrides a column of that name. Raises at once if the plan may move rows between
    tasks (`connectors.task_layout`); ``start()`` raises if the checkpoint is older than what the
    sink has written.

    .. versionadded:: 0.1.0
    """
    check_columns(df.schema, topic)
    writer = exactly_once(df, log, FORMAT)
    if topic is not None:
        writer.option("topic", topic)
    if buckets is not None:
        writer.option("buckets", buckets.text)
    return writer


def exactly_once(
    df: DataFrame, log: str, form: str, *, deterministic: bool = False
) -> ExactlyOnceWriter:
    """Return a writer of a format of the embedded log that checks plan and checkpoint."""
    layout = task_layout(df, deterministic=deterministic)
    with Log(log) as opened:
        address = opened.address  # absolute, because workers run in another folder
    writer = ExactlyOnceWriter(
        df,
        writer=f"the query that writes {address}",
        layout=layout,
        markers=partial(_markers, address),
    )
    writer.format(form)
    return writer.option("path", address)


def _markers(address: str, query: str) -> dict[int, LastBatch]:
    with Log(address) as log:
        return log.markers(query)


@dataclass(frozen=True, slots=True)
class LogWriter:
    """The part that batch and streaming writers share."""

    address: str
    topic: str | None
    buckets: Buckets | None = None

    @classmethod
    def of(cls, options: dict[str, str], schema: StructType) -> "LogWriter":
        """Create a writer from the options of the sink, and check the columns."""
        check_names(options, _OPTIONS, "sink")
        address, topic = options.get("path"), options.get("topic")
        if not address:
            raise ConfigurationError('the sink needs a path: .start("file:./topics")')
        check_columns(schema, topic)
        known = options.get("buckets")
        return cls(address, topic, None if known is None else Buckets.of(known))

    def placed(
        self, batches: Iterator[pa.RecordBatch], log: Log
    ) -> dict[str, list[ProducerRecord]]:
        """Return the records by topic, with the partitions of their buckets if there are any."""
        records = self.records(batches)
        if self.buckets is None:
            return records
        placing = Placing(self.buckets, partial(newest, log))
        return {
            topic: [found for one in some if (found := placed(placing, topic, one)) is not None]
            for topic, some in records.items()
        }

    def records(self, batches: Iterator[pa.RecordBatch]) -> dict[str, list[ProducerRecord]]:
        """Return the rows as records, by topic."""
        by_topic: dict[str, list[ProducerRecord]] = {}
        for batch in batches:
            for key, value, topic, partition, timestamp, headers in sink_rows(batch):
                pairs = header_pairs(headers, placed=partition is not None) if headers else ()
                record = ProducerRecord(key, value, pairs, timestamp, partition)
                by_topic.setdefault(self.topic or topic or "", []).append(record)
        return by_topic


class LogBatchWriter(DataSourceArrowWriter):
    """Writes a batch DataFrame; a task that is retried writes again."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task."""
        with Log(self._writer.address) as log:
            log.append(self._writer.placed(require_complete_input(iterator), log))
        return WriterCommitMessage()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch exactly once."""

    def __init__(self, writer: LogWriter, layout: str) -> None:
        self._writer = writer
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task together with its micro-batch number."""
        freeze_gc()
        task = streaming_task()
        marker = (task.query, task.partition)
        with Log(self._writer.address) as log:
            self._append(
                log,
                require_complete_input(iterator),
                marker=marker,
                batch=task.batch,
                layout=self._layout,
            )
        return WriterCommitMessage()

    def _append(self, log: Log, rows: Iterator[pa.RecordBatch], **batch: Any) -> None:
        log.append(self._writer.placed(rows, log), **batch)


def register(spark: SparkSession) -> None:
    """Register the format ``thulawa`` with a session."""
    spark.dataSource.register(LogFormat)


class LogFormat(SourceFormat):
    """The embedded log as source and sink, batch and streaming."""

    FORMAT = FORMAT

    def log_reader(self, *also: str) -> LogReader:
        """Create a reader from the options."""
        return LogReader.of(self.options, also=also)

    def writer(self, schema: StructType, overwrite: bool) -> LogBatchWriter:  # noqa: FBT001
        """Create the batch writer."""
        _check_append(overwrite)
        return LogBatchWriter(LogWriter.of(dict(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: FBT001
        """Create the streaming writer."""
        _check_append(overwrite)
        writer = LogWriter.of(dict(self.options), schema)
        return LogStreamWriter(writer, layout_of(self.options, "log_sink"))


def _check_append(overwrite: object) -> None:
    if overwrite:
        raise ConfigurationError(
            "a topic can only be appended to: use mode('append'), or outputMode('append') or "
            "('update') in a stream; delete_topic() empties it"
        )
