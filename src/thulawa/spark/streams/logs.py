"""Where an application's topics are: what Streams asks of an embedded log, or of Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from thulawa.core.errors import ConfigurationError
from thulawa.log import Log, ProducerRecord

__all__ = ["EmbeddedTopics", "Topics", "topics_at"]


class Topics(Protocol):
    """The topics of an application."""

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""

    def create(self, name: str, partitions: int) -> None:
        """Make a topic, unless it is there."""

    def read(self, spark: SparkSession, names: tuple[str, ...], options: Mapping[str, str]) -> Any:
        """Give the rows of topics as a streaming DataFrame."""

    def write(self, rows: DataFrame) -> Any:
        """Give the writer of rows to topics; it only needs to be started."""

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
        self, spark: SparkSession, names: tuple[str, ...], options: Mapping[str, str]
    ) -> DataFrame:
        """Give the rows of topics as a streaming DataFrame."""
        # a stage costs by the partition: no more of them than run at a time
        cores = spark.sparkContext.defaultParallelism
        reader = spark.readStream.format("thulawa").option("subscribe", ",".join(names))
        reader = reader.option("maxPartitions", cores)
        return reader.options(**options).load(self.address)

    def write(self, rows: DataFrame) -> Any:
        """Give the writer of rows to topics."""
        return rows.writeStream.format("thulawa").outputMode("append")

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


def topics_at(address: str) -> Topics:
    """Give the topics at an address: ``file:./topics``."""
    if address.startswith("file:"):
        return EmbeddedTopics(address)
    raise ConfigurationError(
        f"log={address!r} is not known; use file:PATH for an embedded log, or kafka://HOST:PORT"
    )
