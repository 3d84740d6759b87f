"""The format in which stream programs read Kafka: chunks, with the first stage in the source."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from thulawa.spark.connectors.kafka_reader import KafkaReader
from thulawa.spark.connectors.kafka_sink import connection_of
from thulawa.spark.connectors.log_packed import OPTIONS, PackedReader, packed_reader

NAME = "thulawa-kafka-packed"


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    spark.dataSource.register(PackedKafkaFormat)


class PackedKafkaFormat(DataSource):
    """Streaming source of chunks of Kafka topics."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def streamReader(self, schema: StructType) -> PackedReader:  # noqa: ARG002 `read_chunks` sets it
        """Create the streaming reader."""
        options = self.options
        reader = KafkaReader.of_kafka(options, connection_of(options), also=OPTIONS)
        return packed_reader(reader, options)
