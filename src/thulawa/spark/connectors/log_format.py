"""``spark.readStream.format("thulawa")``: the embedded log as a data source of Spark."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from thulawa.errors import ConfigurationError
from thulawa.spark.connectors.exactly_once import layout_of
from thulawa.spark.connectors.log_sink import FORMAT, LogBatchWriter, LogStreamWriter, LogWriter
from thulawa.spark.connectors.log_source import SCHEMA, LogBatchReader, LogReader, count_of
from thulawa.spark.connectors.stream_reader import LogStreamReader

__all__ = ["LogFormat", "register"]


def register(spark: SparkSession) -> None:
    """Register the format ``thulawa`` with a session."""
    spark.dataSource.register(LogFormat)


class LogFormat(DataSource):
    """The embedded log as source and sink, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that are read: those of Spark's Kafka source."""
        return SCHEMA

    def reader(self, schema: StructType) -> LogBatchReader:  # noqa: ARG002 it is fixed
        """Create the batch reader."""
        return LogBatchReader(LogReader.of(self.options))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: ARG002
        """Create the streaming reader."""
        most = count_of(self.options, "maxOffsetsPerTrigger")
        return LogStreamReader(LogReader.of(self.options), most)

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
