"""The broker of an application: the port to its topics, and its source and sink on Spark."""

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, get_args

from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.embedded.embedded_broker import EmbeddedBroker
from thulawa.brokers.kafka.broker import KafkaBroker
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.transactions import Guarantee, SinkSpec
from thulawa.brokers.port import Broker, WriterId, await_committed, open_broker
from thulawa.core.types import Offsets, ProducerRecord
from thulawa.errors import ConfigurationError
from thulawa.spark.connectors.kafka_sink import connection_options, writer_of
from thulawa.spark.connectors.kafka_sink import register as register_kafka
from thulawa.spark.connectors.kafka_source import PackedKafkaFormat
from thulawa.spark.connectors.log_packed import PackedLogFormat, packed_sink
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.internals import spark_schema
from thulawa.spark.micro_batch.output_limits import OutputLimits
from thulawa.spark.micro_batch.wire import OUTGOING, unpack_outgoing


class StreamsBroker(ABC):
    """A broker as `Streams` uses it; there is a subclass for each kind of `Broker`.

    ``checkpoints`` is the folder of checkpoints where none is chosen, ``guarantee`` that of the
    sink, and ``limits`` are the size limits of output topics.
    """

    broker: Broker
    checkpoints: str
    limits: OutputLimits
    guarantee: Guarantee = "exactly_once"

    @abstractmethod
    def register(self, spark: SparkSession) -> None:
        """Register the data sources in a session; sessions that are cloned from it have them."""

    @abstractmethod
    def _packed_reader(self, spark: SparkSession) -> Any:
        """Return a stream reader of the broker's packed format."""

    @abstractmethod
    def write(self, rows: DataFrame, application: str) -> Any:
        """Return a writer of packed rows to topics, ready to be started."""

    def reader(
        self,
        spark: SparkSession,
        topics: tuple[str, ...],
        max_records: int | None,
        starts: Offsets | None = None,
    ) -> Any:
        """Return a reader of topics, of at most ``max_records`` records in a micro-batch.

        A query without a checkpoint starts at ``starts``, and elsewhere at the first record.
        """
        reader = self._packed_reader(spark).option("subscribe", ",".join(topics))
        if max_records is not None:
            reader = reader.option("maxOffsetsPerTrigger", max_records)
        return reader.option("startingOffsets", json.dumps(starts)) if starts else reader

    def create(
        self, name: str, partitions: int, *, compact: bool = False, unlimited: bool = False
    ) -> None:
        """Create a topic unless it exists; a compacted one must exist with these settings."""
        if compact or not self.broker.partitions(name):
            self.broker.create_topic(name, partitions, compact=compact, unlimited=unlimited)

    def put(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Write one record to partition 0 of a topic; it is stored when this returns."""
        self.broker.append(topic, [ProducerRecord(key, value, partition=0)])

    def settle(self, application: str, *topics: str) -> None:
        """Abort transactions that earlier runs left open, and wait until topics can be read."""
        self.broker.fence(sink_writer(application))
        await_committed(self.broker, *topics)

    def last_batches(self, application: str, query: str) -> dict[int, int]:
        """Return the last batch that each task of a query has written, of those that have."""
        markers = self.broker.markers(sink_writer(application, query))
        return {task: last.number for task, last in markers.items()}

    def last_written(self, application: str, query: str) -> int:
        """Return the last batch of a query that any task has written, or -1.

        Tasks of earlier runs are fenced: they write nothing more.
        """
        if self.guarantee != "exactly_once":
            return -1
        self.broker.fence(sink_writer(application, query))
        return max(self.last_batches(application, query).values(), default=-1)


def sink_writer(application: str, query: str = "") -> WriterId:
    """Return the identity of an application's sink."""
    return WriterId(application=application, query=query)


class EmbeddedStreamsBroker(StreamsBroker):
    """The embedded log; its sink writes exactly once at no extra cost."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.checkpoints = f"{broker.address.removeprefix('file:')}/checkpoints"
        self.limits = OutputLimits(broker)

    def register(self, spark: SparkSession) -> None:
        """Register the data source."""
        spark.dataSource.register(PackedLogFormat)

    def _packed_reader(self, spark: SparkSession) -> Any:
        return spark.readStream.format(PackedLogFormat.FORMAT).option("path", self.broker.address)

    def write(self, rows: DataFrame, application: str) -> Any:  # noqa: ARG002 the query's id does
        """Return a writer of packed rows to topics."""
        return packed_sink(rows, self.broker.address)


class KafkaStreamsBroker(StreamsBroker):
    """Kafka; ``transaction_timeout`` None: the default of the sink."""

    checkpoints = "checkpoints"  # in the working directory of the program

    def __init__(
        self,
        broker: KafkaBroker,
        guarantee: Guarantee = "exactly_once",
        policies: Policies | None = None,
        transaction_timeout: float | None = None,
    ) -> None:
        self.broker = broker
        self.guarantee = guarantee
        self._connection = broker.connection
        self._policies = policies or Policies()
        self._transaction_timeout = transaction_timeout
        self.limits = OutputLimits(
            broker,
            may_be_missing=self._policies.missing != "fail",
            may_be_oversized=self._policies.oversized != "fail",
        )

    def register(self, spark: SparkSession) -> None:
        """Register the data sources."""
        register_kafka(spark)
        spark.dataSource.register(PackedKafkaFormat)

    def _packed_reader(self, spark: SparkSession) -> Any:
        options = connection_options(self._connection)
        return spark.readStream.format(PackedKafkaFormat.FORMAT).options(**options)

    def write(self, rows: DataFrame, application: str) -> Any:
        """Return a writer of packed rows to topics."""
        rows = rows.mapInArrow(unpack_outgoing, spark_schema(OUTGOING))
        # repartitions behind functions that are not known to be deterministic are topics
        layout = task_layout(rows, deterministic=True) if self.guarantee == "exactly_once" else ""
        return writer_of(rows, self.sink(application), None, layout)

    def sink(self, application: str) -> SinkSpec:
        """Return the settings of the application's sink."""
        spec = SinkSpec(
            connection=self._connection,
            application=application,
            guarantee=self.guarantee,
            policies=self._policies,
        )
        if (longest := self._transaction_timeout) is None:
            return spec
        delivery = min(spec.delivery_timeout, longest)
        return replace(spec, transaction_timeout=longest, delivery_timeout=delivery)


def streams_broker(
    address: str | Connection,
    guarantee: Guarantee = "exactly_once",
    policies: Policies | None = None,
    transaction_timeout: float | None = None,
) -> StreamsBroker:
    """Return the broker at ``file:./topics``, ``kafka://host:9092``, or of a `Connection`."""
    if guarantee not in get_args(Guarantee):
        known = ", ".join(get_args(Guarantee))
        raise ConfigurationError(f"processing_guarantee is one of {known}, not {guarantee!r}")
    broker = open_broker(address)
    if isinstance(broker, KafkaBroker):
        if transaction_timeout is not None and (
            guarantee != "exactly_once" or transaction_timeout < 1
        ):
            raise ConfigurationError(
                "transaction_timeout is at least 1 s, and for exactly_once: without transactions "
                "leave it out"
            )
        return KafkaStreamsBroker(broker, guarantee, policies, transaction_timeout)
    assert isinstance(broker, EmbeddedBroker)
    if guarantee != "exactly_once" or policies is not None or transaction_timeout is not None:
        raise ConfigurationError(
            "an embedded log is written exactly once at no extra cost, and has no policies; "
            "leave processing_guarantee, policies and transaction_timeout out"
        )
    return EmbeddedStreamsBroker(broker)
