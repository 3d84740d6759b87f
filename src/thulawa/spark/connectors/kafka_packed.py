"""Kafka's topics as stream programs read them: many records at a time, with the front beside."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from thulawa.spark.connectors.kafka_reader import KafkaReader
from thulawa.spark.connectors.kafka_sink import connection_of
from thulawa.spark.connectors.log_packed import OPTIONS, PackedReader, packed_reader

__all__ = ["NAME", "register"]

NAME = "thulawa-kafka-packed"


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(PackedKafkaFormat)


class PackedKafkaFormat(DataSource):
    """Chunks of Kafka's topics, to read, streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def streamReader(self, schema: StructType) -> PackedReader:  # noqa: ARG002 `read_chunks` sets it
        """Read what comes."""
        options = self.options
        reader = KafkaReader.of_kafka(options, connection_of(options), also=OPTIONS)
        return packed_reader(reader, options)
