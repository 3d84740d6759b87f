"""Read and write the topics of a broker with Spark: one source and one sink for each broker."""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.transactions import Guarantee, SinkSpec
from thulawa.core.types import Offsets
from thulawa.spark.connectors.kafka_sink import connection_options, writer_of
from thulawa.spark.connectors.kafka_sink import register as register_kafka
from thulawa.spark.connectors.kafka_source import PackedKafkaFormat
from thulawa.spark.connectors.log_packed import ChunkFunction, PackedLogFormat, packed_sink
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.micro_batch.inputs import ReadSpec, read_topics
from thulawa.spark.micro_batch.output_limits import EmbeddedOutlets, KafkaOutlets, Outlets
from thulawa.spark.micro_batch.wire import unpack_outgoing

__all__ = ["BrokerFormats", "EmbeddedFormats", "KafkaFormats"]

_OUTGOING = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)


class BrokerFormats(Protocol):
    """The Spark source and sink of a broker, and what its topics accept."""

    @property
    def checkpoints(self) -> str:
        """The folder of checkpoints where none is chosen."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the sink."""

    def register(self, spark: SparkSession) -> None:
        """Register the data sources in a session; sessions that are cloned from it have them."""

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Return the output of a function that runs where topics are read.

        At most ``max_records`` records make a micro-batch. A query without a checkpoint starts at
        ``starts``, and in other partitions at the first record.
        """

    def write(self, rows: DataFrame, application: str) -> Any:
        """Return a writer of packed rows to topics, ready to be started."""

    def outlets(self) -> Outlets:
        """Return the size limits of topics, for workers."""


@dataclass(frozen=True, slots=True)
class EmbeddedFormats:
    """The source and the sink of the embedded log."""

    address: str

    @property
    def checkpoints(self) -> str:
        """The folder of checkpoints, beside the topics."""
        return f"{self.address.removeprefix('file:')}/checkpoints"

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the sink: it costs nothing here."""
        return "exactly_once"

    def register(self, spark: SparkSession) -> None:
        """Register the data source."""
        spark.dataSource.register(PackedLogFormat)

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Return the output of a function that runs where topics are read."""
        reader = spark.readStream.format(PackedLogFormat.FORMAT)
        return read_topics(spark, reader, self.address, names, max_records, front, spec, starts)

    def write(self, rows: DataFrame, application: str) -> Any:  # noqa: ARG002 the query's id does
        """Return a writer of packed rows to topics."""
        return packed_sink(rows, self.address)

    def outlets(self) -> Outlets:
        """Return the size limits of topics."""
        return EmbeddedOutlets(self.address)


@dataclass(frozen=True, slots=True)
class KafkaFormats:
    """The source and the sink of Kafka; ``transaction_timeout`` None: the default of the sink."""

    connection: Connection
    guarantee: Guarantee = "exactly_once"
    policies: Policies = field(default_factory=Policies)
    transaction_timeout: float | None = None

    @property
    def checkpoints(self) -> str:
        """The folder of checkpoints, in the working directory of the program."""
        return "checkpoints"

    def register(self, spark: SparkSession) -> None:
        """Register the data sources."""
        register_kafka(spark)
        spark.dataSource.register(PackedKafkaFormat)

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Return the output of a function that runs where topics are read."""
        reader = spark.readStream.format(PackedKafkaFormat.FORMAT)
        reader = reader.options(**connection_options(self.connection))
        return read_topics(spark, reader, None, names, max_records, front, spec, starts)

    def write(self, rows: DataFrame, application: str) -> Any:
        """Return a writer of packed rows to topics."""
        rows = rows.mapInArrow(unpack_outgoing, _OUTGOING)
        # repartitions behind functions that are not known to be deterministic are topics
        layout = task_layout(rows, deterministic=True) if self.guarantee == "exactly_once" else ""
        return writer_of(rows, self._sink(application), None, layout)

    def outlets(self) -> Outlets:
        """Return the size limits of topics, except where the sink's policies decide."""
        return KafkaOutlets(
            self.connection,
            may_be_missing=self.policies.missing != "fail",
            may_be_oversized=self.policies.oversized != "fail",
        )

    def _sink(self, application: str) -> SinkSpec:
        spec = SinkSpec(
            connection=self.connection,
            application=application,
            guarantee=self.guarantee,
            policies=self.policies,
        )
        if (longest := self.transaction_timeout) is None:
            return spec
        delivery = min(spec.delivery_timeout, longest)
        return replace(spec, transaction_timeout=longest, delivery_timeout=delivery)
