"""Kafka as a Spark sink that writes each micro-batch exactly once.

The columns are those of the embedded log's sink. Every Spark task writes its rows in one Kafka
transaction, together with the number of the micro-batch (see `brokers.kafka.transactions`). A rerun
must have the same rows in each task, so plans that move rows between tasks are rejected.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import OutRecord, Policies
from thulawa.brokers.kafka.topics import TopicSpec, reachable
from thulawa.brokers.kafka.transactions import SinkBatch, SinkSpec, fence, markers, write
from thulawa.core.durations import milliseconds
from thulawa.core.gc_freeze import freeze_gc
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.kafka_clients import check_layout
from thulawa.spark.connectors.exactly_once import (
    LAYOUT,
    ExactlyOnceWriter,
    layout_of,
    require_complete_input,
)
from thulawa.spark.connectors.kafka_reader import KafkaReader
from thulawa.spark.connectors.log_source import check_names, count_of
from thulawa.spark.connectors.record_columns import check_columns, header_pairs, sink_rows
from thulawa.spark.connectors.stream_reader import SourceFormat
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.task_context import streaming_task

FORMAT = "thulawa-kafka"
_PREFIX = "kafka."


class _SinkOption(NamedTuple):
    """How an option of the format is written and read: a field of `SinkSpec`, as a dotted path."""

    field: str
    write: Callable[[Any], str | None] = str
    read: Callable[[str], Any] = str


def _seconds(field: str, name: str) -> _SinkOption:
    return _SinkOption(
        field, lambda seconds: f"{seconds} s", lambda text: milliseconds(text, name=name) / 1_000
    )


# Defaults are those of `SinkSpec`, `Policies` and `TopicSpec`.
_SINK_OPTIONS = {
    "application": _SinkOption("application"),
    "sink": _SinkOption("name"),
    "buckets": _SinkOption("buckets", attrgetter("text"), Buckets.of),
    "processingGuarantee": _SinkOption("guarantee"),
    "transactionTimeout": _seconds("transaction_timeout", "transactionTimeout"),
    "deliveryTimeout": _seconds("delivery_timeout", "deliveryTimeout"),
    "missingTopic": _SinkOption("policies.missing"),
    "oversized": _SinkOption("policies.oversized"),
    "deadLetterTopic": _SinkOption("policies.dead_letter"),
    "partitions": _SinkOption("policies.spec.partitions", str, int),
    "cleanup": _SinkOption("policies.spec.cleanup"),
    "copies": _SinkOption("policies.spec.copies", lambda n: None if n < 0 else str(n), int),
    "topicSettings": _SinkOption(
        "policies.spec.settings", lambda s: json.dumps(dict(s)), json.loads
    ),
    "markers": _SinkOption("markers"),
}
_OTHER_OPTIONS = ("topic", "checkpointLocation", "queryName", LAYOUT)
_COUNTS = ("partitions", "copies")


def register(spark: SparkSession) -> None:
    """Register the format ``thulawa-kafka`` with a session."""
    spark.dataSource.register(KafkaFormat)


def kafka_sink(df: DataFrame, sink: SinkSpec, *, topic: str | None = None) -> DataStreamWriter:
    """Return a writer that writes each micro-batch of a streaming DataFrame to Kafka exactly once.

    Set its checkpoint and trigger, and start it::

        kafka_sink(rows, SinkSpec(connection=…, application="geo"), topic="visits")
        .option("checkpointLocation", "…").start()

    ``topic`` overrides a column of that name, as in Spark's own sink. Raises at once if the brokers
    do not answer or reject the credentials, or if the plan may move rows between tasks
    (`connectors.task_layout`). ``start()`` raises if the checkpoint is older than what the sink has
    written.

    .. versionadded:: 0.1.0
    """
    return writer_of(df, sink, topic, task_layout(df) if sink.guarantee == "exactly_once" else "")


def writer_of(df: DataFrame, sink: SinkSpec, topic: str | None, layout: str) -> DataStreamWriter:
    """Return the writer of a streaming DataFrame whose plan has been checked."""
    spark = df.sparkSession
    check_columns(df.schema, topic)
    reachable(sink.connection)
    if sink.buckets is not None and topic is not None:
        check_layout(sink.connection, topic, sink.buckets)
    register(spark)
    options = options_of(sink, topic)
    if sink.guarantee != "exactly_once":
        return df.writeStream.format(FORMAT).options(**options)
    writer = ExactlyOnceWriter(
        df,
        writer=f"the sink {sink.group}",
        layout=layout,
        markers=partial(markers, sink),
        fence=partial(fence, sink),
    )
    return writer.options(**options).format(FORMAT)


class KafkaFormat(SourceFormat):
    """Kafka as a source, batch and streaming, and as a streaming sink."""

    FORMAT = FORMAT

    def log_reader(self, *also: str) -> KafkaReader:
        """Create a reader from the options."""
        return KafkaReader.of_kafka(self.options, connection_of(self.options), also=also)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "KafkaStreamWriter":  # noqa: ARG002, FBT001
        """Create the streaming writer."""
        _check_sink_names(self.options)
        exactly_once = self.options.get("processingGuarantee", "exactly_once") == "exactly_once"
        # before the others: who uses the bare format is told of kafka_sink, not of missing options
        layout = layout_of(self.options, "kafka_sink") if exactly_once else ""
        sink, topic = sink_of(self.options), self.options.get("topic")
        check_columns(schema, topic)
        return KafkaStreamWriter(sink, topic, layout)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch exactly once."""

    def __init__(self, sink: SinkSpec, topic: str | None, layout: str) -> None:
        self._sink = sink
        self._topic = topic
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the records of one task together with its micro-batch number."""
        freeze_gc()
        batch = SinkBatch(*streaming_task(), self._layout)
        rows = (out_records(one, self._topic) for one in require_complete_input(iterator))
        write(self._sink, batch, rows)
        return WriterCommitMessage()


def out_records(batch: pa.RecordBatch, topic: str | None) -> list[OutRecord]:
    """Return the rows of an Arrow batch as records to send."""
    return [
        OutRecord(
            topic or own or "",
            key,
            value,
            -1 if partition is None else partition,
            timestamp,
            header_pairs(headers, placed=partition is not None) if headers else None,
        )
        for key, value, own, partition, timestamp, headers in sink_rows(batch)
    ]


def options_of(sink: SinkSpec, topic: str | None) -> dict[str, str]:
    """Return a sink as options of the format."""
    written = {
        name: option.write(value)
        for name, option in _SINK_OPTIONS.items()
        if (value := attrgetter(option.field)(sink)) is not None
    }
    written["topic"] = topic
    chosen = {name: value for name, value in written.items() if value is not None}
    return chosen | connection_options(sink.connection)


def _check_sink_names(options: Mapping[str, str]) -> None:
    check_names(options, (*_SINK_OPTIONS, *_OTHER_OPTIONS), "sink")


def sink_of(options: Mapping[str, str]) -> SinkSpec:
    """Return the sink that options of the format describe; names are not case-sensitive."""
    _check_sink_names(options)
    connection = connection_of(options)
    if connection is None or not options.get("application"):
        raise ConfigurationError(
            'the sink needs .option("kafka.bootstrap.servers", "…") and .option("application", "…")'
        )
    for name in _COUNTS:
        count_of(options, name)
    parts: dict[str, dict[str, Any]] = {"": {}, "policies": {}, "policies.spec": {}}
    for name, option in _SINK_OPTIONS.items():
        if (text := options.get(name)) is not None:
            part, _, field = option.field.rpartition(".")
            parts[part][field] = option.read(text)
    policies = Policies(**parts["policies"], spec=TopicSpec(**parts["policies.spec"]))
    return SinkSpec(connection=connection, policies=policies, **parts[""])


def connection_of(options: Mapping[str, str]) -> Connection | None:
    """Return the connection that options of a format describe; None without a broker."""
    bootstrap = options.get(f"{_PREFIX}bootstrap.servers")
    settings = {
        name.removeprefix(_PREFIX): value
        for name, value in dict(options).items()
        if name.startswith(_PREFIX) and name != f"{_PREFIX}bootstrap.servers"
    }
    return Connection(bootstrap, settings) if bootstrap else None


def connection_options(connection: Connection) -> dict[str, str]:
    """Return a connection as options of a format."""
    return {
        f"{_PREFIX}bootstrap.servers": connection.bootstrap,
        **{f"{_PREFIX}{name}": value for name, value in connection.settings.items()},
    }
