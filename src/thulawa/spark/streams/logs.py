"""Where an application's topics are: what Streams asks of an embedded log, or of Kafka."""

from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from thulawa.core.errors import ConfigurationError
from thulawa.kafka.connection import Connection
from thulawa.kafka.errors import BrokerUnreachable
from thulawa.kafka.topics import Topics as BrokerTopics
from thulawa.kafka.topics import TopicSpec
from thulawa.kafka.transactions import SinkSpec
from thulawa.log import Log, ProducerRecord
from thulawa.spark import log_packed
from thulawa.spark.kafka_sink import kafka_sink
from thulawa.spark.kafka_sink import register as register_kafka
from thulawa.spark.kafka_source import kafka_source
from thulawa.spark.streams.wire import unpack_outgoing

__all__ = ["EmbeddedTopics", "KafkaTopics", "Topics", "topics_at"]

_TICK_SECONDS = 30
_OUTGOING = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)


class Topics(Protocol):
    """The topics of an application."""

    def register(self, spark: SparkSession) -> None:
        """Make the formats known that are needed here; a session's copies know them then."""

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""

    def create(self, name: str, partitions: int) -> None:
        """Make a topic, unless it is there."""

    def read(
        self, spark: SparkSession, names: tuple[str, ...], max_records: int | None
    ) -> DataFrame:
        """Give the records of topics as a streaming DataFrame, so many at a time."""

    def write(self, rows: DataFrame, application: str) -> Any:
        """Give the writer of packed rows to topics; it only needs to be started."""

    def start(self, writer: Any) -> Any:
        """Start the writer's query."""

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""

    def tick(self, name: str) -> None:
        """Write an empty record to a topic: Spark runs no batch without one to begin with."""


@dataclass(frozen=True, slots=True)
class EmbeddedTopics:
    """The embedded log as the place of an application's topics."""

    address: str

    def register(self, spark: SparkSession) -> None:
        """Make the format known."""
        log_packed.register(spark)

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""
        with Log(self.address) as log:
            there = set(log.topics())
            return {name: len(log.end_offsets(name)) for name in names if name in there}

    def create(self, name: str, partitions: int) -> None:
        """Make a topic, unless it is there."""
        with Log(self.address) as log:
            if name not in log.topics():
                log.create_topic(name, partitions=partitions)

    def read(
        self, spark: SparkSession, names: tuple[str, ...], max_records: int | None
    ) -> DataFrame:
        """Give the batches of topics, as they are stored, as a streaming DataFrame."""
        # a stage costs by the partition: no more of them than run at a time
        cores = spark.sparkContext.defaultParallelism
        reader = spark.readStream.format(log_packed.NAME).option("subscribe", ",".join(names))
        reader = reader.option("maxPartitions", cores)
        if max_records is not None:
            reader = reader.option("maxOffsetsPerTrigger", max_records)
        return reader.load(self.address)

    def write(self, rows: DataFrame, application: str) -> Any:  # noqa: ARG002 the query's id does
        """Give the writer of packed rows to topics."""
        return rows.writeStream.format(log_packed.NAME).outputMode("append")

    def start(self, writer: Any) -> Any:
        """Start the writer's query."""
        return writer.start(self.address)

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""
        with Log(self.address) as log:
            return {name: dict(log.end_offsets(name)) for name in names}

    def tick(self, name: str) -> None:
        """Write an empty record to a topic."""
        with Log(self.address) as log:
            log.append({name: [ProducerRecord(None, None)]})


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """Kafka as the place of an application's topics."""

    connection: Connection

    def register(self, spark: SparkSession) -> None:
        """Make the format known."""
        register_kafka(spark)

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""
        found = BrokerTopics(self.connection).partitions(*names)
        return {name: count for name, count in found.items() if count is not None}

    def create(self, name: str, partitions: int) -> None:
        """Make a topic, unless it is there."""
        if not self.partitions((name,)):
            BrokerTopics(self.connection).ensure(name, TopicSpec(partitions=partitions))

    def read(
        self, spark: SparkSession, names: tuple[str, ...], max_records: int | None
    ) -> DataFrame:
        """Give the rows of topics as a streaming DataFrame."""
        return kafka_source(spark, self.connection, names, max_records=max_records)

    def write(self, rows: DataFrame, application: str) -> Any:
        """Give the writer of packed rows to topics, exactly once."""
        rows = rows.mapInArrow(unpack_outgoing, _OUTGOING)
        return kafka_sink(rows, SinkSpec(connection=self.connection, application=application))

    def start(self, writer: Any) -> Any:
        """Start the writer's query."""
        return writer.start()

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""
        return BrokerTopics(self.connection).end_offsets(*names)

    def tick(self, name: str) -> None:
        """Write an empty record to a topic."""
        producer = Producer(self.connection.client())
        producer.produce(name)
        if producer.flush(_TICK_SECONDS):
            raise BrokerUnreachable(f"{self.connection.bootstrap} took no record of {name}")


def topics_at(address: str) -> Topics:
    """Give the topics at an address: ``file:./topics`` or ``kafka://host:9092``."""
    if address.startswith("file:"):
        with Log(address) as log:  # workers may stand in another folder
            return EmbeddedTopics(log.address)
    if address.startswith("kafka://"):
        return KafkaTopics(Connection.of(address))
    raise ConfigurationError(
        f"log={address!r} is not known; use file:PATH for an embedded log, or kafka://HOST:PORT"
    )
