"""Kafka read by the Python client: for queries whose triggers take buckets by their weights.

Spark's connector shares out a trigger's limit by how much each partition holds, inside Java: a
flood in one bucket takes nearly all of it, and there is no place to say otherwise. A union of a
source for each bucket, each with a limit of its own, was weighed: what one does not use is lost to
the others, nothing can be strict, and the rows of a key are no longer seen to be in one partition.
So this source does what the embedded log's does, over a broker. It costs a Python consumer for
each task of a batch; where there are no buckets, Spark's connector is the better source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from thulawa.core.errors import ConfigurationError
from thulawa.kafka.connection import Connection
from thulawa.kafka.reading import headers_of, read_between
from thulawa.kafka.topics import Offsets as KafkaOffsets
from thulawa.kafka.topics import Topics
from thulawa.log import Columns
from thulawa.spark.log_source import LogReader, Offsets, Range, named

__all__ = ["KafkaReader"]


@dataclass(frozen=True, slots=True)
class KafkaReader(LogReader):
    """The reader of topics, over a broker: committed records only."""

    connection: Connection = field(default_factory=Connection.of)

    @classmethod
    def of_kafka(cls, options: Mapping[str, str], connection: Connection | None) -> "KafkaReader":
        """Read the options of the source."""
        if connection is None:
            raise ConfigurationError('the source needs .option("kafka.bootstrap.servers", "…")')
        known = LogReader.of(options, connection.bootstrap)
        return cls(
            known.address,
            known.topics,
            known.starting,
            known.most_partitions,
            known.assigned,
            known.admission,
            connection,
        )

    def _firsts(self) -> Offsets:
        return _all_named(Topics(self.connection).start_offsets(*self.topics))

    def _ends(self) -> Offsets:
        return _all_named(Topics(self.connection).end_offsets(*self.topics))

    def _chunks(self, ranges: list[Range]) -> Iterator[tuple[Range, Columns]]:
        for one in ranges:
            span = {one.partition: (one.start, one.end)}
            for messages in read_between(self.connection, one.topic, span):
                yield one, _columns(messages)


def _all_named(offsets: KafkaOffsets) -> Offsets:
    return {topic: named(places) for topic, places in offsets.items()}


def _columns(messages: list[Message]) -> Columns:
    return Columns(
        [_int(message.offset()) for message in messages],
        [message.timestamp()[1] for message in messages],
        [_bytes(message.key()) for message in messages],
        [_bytes(message.value()) for message in messages],
        [headers_of(message) for message in messages],
    )


def _int(value: int | None) -> int:
    assert value is not None
    return value


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
