"""Kafka as a Spark sink: each batch exactly once.

The columns are those of the embedded log's sink. Every Spark task writes its rows in one Kafka
transaction, together with the number of the batch (see `brokers.kafka.transactions`). It needs
a task's rows to be the same when a batch is run again: what moves them is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Missing, OutRecord, Oversized, Policies
from thulawa.brokers.kafka.topics import Cleanup, TopicSpec, reachable
from thulawa.brokers.kafka.transactions import (
    Batch,
    Guarantee,
    SinkSpec,
    Written,
    fence,
    markers,
    write,
)
from thulawa.core.durations import milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.core.gc_freeze import settle
from thulawa.priority.buckets import Buckets
from thulawa.priority.kafka_clients import check_layout
from thulawa.spark.connectors.complete_input import require_complete_input
from thulawa.spark.connectors.exactly_once import LAYOUT, ExactlyOnceWriter, layout_of
from thulawa.spark.connectors.kafka_reader import KafkaReader
from thulawa.spark.connectors.log_source import SCHEMA, LogBatchReader, check_names, count_of
from thulawa.spark.connectors.record_columns import check_columns, column_values, header_pairs
from thulawa.spark.connectors.stream_reader import LogStreamReader
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.task_context import streaming_task

__all__ = [
    "FORMAT",
    "KafkaFormat",
    "KafkaStreamWriter",
    "connection_of",
    "connection_options",
    "kafka_sink",
    "options_of",
    "register",
    "sink_of",
]

FORMAT = "thulawa-kafka"
_PREFIX = "kafka."
_OPTIONS = (
    "application",
    "sink",
    "topic",
    "buckets",
    "processingGuarantee",
    "transactionTimeout",
    "deliveryTimeout",
    "missingTopic",
    "oversized",
    "deadLetterTopic",
    "partitions",
    "cleanup",
    "copies",
    "topicSettings",
    "markers",
    "checkpointLocation",
    "queryName",
    LAYOUT,
)


def register(spark: SparkSession) -> None:
    """Make the format ``thulawa-kafka`` known to a session."""
    spark.dataSource.register(KafkaFormat)


def kafka_sink(df: DataFrame, sink: SinkSpec, *, topic: str | None = None) -> DataStreamWriter:
    """Give a writer of a streaming DataFrame that writes each batch to Kafka exactly once.

    Give it a checkpoint and a trigger, and start it::

        kafka_sink(rows, SinkSpec(connection=…, application="geo"), topic="visits")
        .option("checkpointLocation", "…").start()

    ``topic`` goes before a column of that name, as in Spark's own sink. Raises at once when the
    brokers do not answer or do not let us in, or when the plan may move rows between tasks
    (`connectors.task_layout`). ``start()`` raises when the checkpoint is older than what the
    sink has written.

    .. versionadded:: 0.1.0
    """
    spark = df.sparkSession
    exact = sink.guarantee == "exactly_once"
    layout = task_layout(df) if exact else ""
    check_columns(df.schema, topic)
    reachable(sink.connection)
    if sink.buckets is not None and topic is not None:
        check_layout(sink.connection, topic, sink.buckets)
    register(spark)
    options = options_of(sink, topic)
    if not exact:
        return df.writeStream.format(FORMAT).options(**options)
    writer = ExactlyOnceWriter(
        df,
        writer=f"the sink {sink.group}",
        layout=layout,
        markers=partial(markers, sink),
        fence=partial(fence, sink),
    )
    return writer.options(**options).format(FORMAT)


@dataclass(slots=True)
class Committed(WriterCommitMessage):
    """What a task has written."""

    task: int
    written: Written


class KafkaFormat(DataSource):
    """Kafka, to read from, batch and streaming, and to write the batches of a query to."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Give the columns that are read: those of the embedded log's source."""
        return SCHEMA

    def reader(self, schema: StructType) -> LogBatchReader:  # noqa: ARG002 there is but one
        """Read what is there."""
        return LogBatchReader(KafkaReader.of_kafka(self.options, connection_of(self.options)))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: ARG002
        """Read what comes, so many records at a time."""
        reader = KafkaReader.of_kafka(self.options, connection_of(self.options))
        return LogStreamReader(reader, count_of(self.options, "maxOffsetsPerTrigger"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "KafkaStreamWriter":  # noqa: ARG002, FBT001
        """Append the batches of a query."""
        topic = self.options.get("topic")
        check_columns(schema, topic)
        sink = sink_of(self.options)
        exact = sink.guarantee == "exactly_once"
        return KafkaStreamWriter(
            sink, topic, layout_of(self.options, "kafka_sink") if exact else ""
        )


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query exactly once."""

    def __init__(self, sink: SinkSpec, topic: str | None, layout: str) -> None:
        self._sink = sink
        self._topic = topic
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        """Write the records of one task and the number of its batch."""
        settle()
        batch = Batch(*streaming_task(), self._layout)
        rows = (out_records(one, self._topic) for one in require_complete_input(iterator))
        return Committed(batch.task, write(self._sink, batch, rows))


def out_records(batch: pa.RecordBatch, topic: str | None) -> list[OutRecord]:
    """Give the rows of an Arrow batch as records to be sent."""
    names = ("topic", "key", "value", "partition", "timestamp", "headers")
    return [
        OutRecord(
            topic or own or "",
            key,
            value,
            -1 if partition is None else partition,
            timestamp,
            header_pairs(headers, placed=partition is not None) if headers else None,
        )
        for own, key, value, partition, timestamp, headers in zip(
            *(column_values(batch, name) for name in names), strict=True
        )
    ]


def options_of(sink: SinkSpec, topic: str | None) -> dict[str, str]:
    """Write a sink as options of a format."""
    policies, spec = sink.policies, sink.policies.spec
    options = {
        "application": sink.application,
        "sink": sink.name,
        "processingGuarantee": sink.guarantee,
        "transactionTimeout": f"{sink.transaction_timeout} s",
        "deliveryTimeout": f"{sink.delivery_timeout} s",
        "missingTopic": policies.missing,
        "oversized": policies.oversized,
        "partitions": str(spec.partitions),
        "cleanup": spec.cleanup,
        "topicSettings": json.dumps(dict(spec.settings)),
        **connection_options(sink.connection),
    }
    given = {
        "topic": topic,
        "deadLetterTopic": policies.dead_letter,
        "buckets": None if sink.buckets is None else sink.buckets.text,
        "copies": None if spec.copies < 0 else str(spec.copies),
        "markers": sink.markers,
    }
    return options | {name: value for name, value in given.items() if value is not None}


def sink_of(options: Mapping[str, str]) -> SinkSpec:
    """Read a sink from the options of a format; Spark does not keep the case of their names."""
    check_names(options, _OPTIONS, "sink")
    connection = connection_of(options)
    if connection is None or not options.get("application"):
        raise ConfigurationError(
            'the sink needs .option("kafka.bootstrap.servers", "…") and .option("application", "…")'
        )
    return SinkSpec(
        connection=connection,
        application=options["application"],
        name=options.get("sink", "sink"),
        guarantee=cast("Guarantee", options.get("processingGuarantee", "exactly_once")),
        transaction_timeout=_seconds(options, "transactionTimeout", 300),
        delivery_timeout=_seconds(options, "deliveryTimeout", 120),
        buckets=Buckets.of(options["buckets"]) if "buckets" in options else None,
        markers=options.get("markers"),
        policies=Policies(
            missing=cast("Missing", options.get("missingTopic", "fail")),
            oversized=cast("Oversized", options.get("oversized", "fail")),
            dead_letter=options.get("deadLetterTopic"),
            spec=TopicSpec(
                partitions=count_of(options, "partitions") or 1,
                cleanup=cast("Cleanup", options.get("cleanup", "delete")),
                copies=count_of(options, "copies") or -1,
                settings=json.loads(options.get("topicSettings", "{}")),
            ),
        ),
    )


def connection_of(options: Mapping[str, str]) -> Connection | None:
    """Read a connection from the options of a format; None where no broker is given."""
    bootstrap = options.get(f"{_PREFIX}bootstrap.servers")
    settings = {
        name.removeprefix(_PREFIX): value
        for name, value in dict(options).items()
        if name.startswith(_PREFIX) and name != f"{_PREFIX}bootstrap.servers"
    }
    return Connection(bootstrap, settings) if bootstrap else None


def connection_options(connection: Connection) -> dict[str, str]:
    """Write a connection as options of a format."""
    return {
        f"{_PREFIX}bootstrap.servers": connection.bootstrap,
        **{f"{_PREFIX}{name}": value for name, value in connection.settings.items()},
    }


def _seconds(options: Mapping[str, str], name: str, default: int) -> float:
    return milliseconds(options.get(name, f"{default} s"), name=name) / 1_000
