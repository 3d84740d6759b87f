"""``spark.readStream.format("thulawa")``: the embedded log as a data source of Spark."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from thulawa.spark.log_sink import LogBatchWriter, LogStreamWriter, LogWriter
from thulawa.spark.log_source import SCHEMA, LogBatchReader, LogReader, LogStreamReader

__all__ = ["LogFormat", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``thulawa`` known to a session."""
    spark.dataSource.register(LogFormat)


class LogFormat(DataSource):
    """The embedded log, to read from and to write to, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "thulawa"

    def schema(self) -> str:
        """Give the columns that are read: those of Spark's Kafka source."""
        return SCHEMA

    def reader(self, schema: StructType) -> LogBatchReader:  # noqa: ARG002 there is but one
        """Read what is there."""
        return LogBatchReader(LogReader.of(self.options))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: ARG002
        """Read what comes."""
        most = self.options.get("maxOffsetsPerTrigger")
        return LogStreamReader(LogReader.of(self.options), None if most is None else int(most))

    def writer(self, schema: StructType, overwrite: bool) -> LogBatchWriter:  # noqa: ARG002, FBT001
        """Append a DataFrame."""
        return LogBatchWriter(LogWriter.of(dict(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: ARG002, FBT001
        """Append the batches of a query."""
        return LogStreamWriter(LogWriter.of(dict(self.options), schema))
