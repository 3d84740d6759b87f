"""The reader of the Kafka source, on the Python client.

Spark's own connector moves partitions to other tasks after a restart, does not allow a partition to
be removed, has one limit for all topics, and divides it by the backlog of partitions (ADR 0047).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from confluent_kafka import Message

from thulawa.brokers.embedded import Columns
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import first_times, headers_of, read_spans, topic_partition
from thulawa.brokers.kafka.topics import Topics
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.spark.connectors.chunks import Chunk
from thulawa.spark.connectors.log_source import LogReader, OffsetRange, TopicEnds
from thulawa.spark.connectors.offsets import KAFKA, PartitionOffsets, by_partition

_INTERNAL = ("__consumer_offsets", "__transaction_state")  # never match a pattern
_TIMEOUT = 60.0  # seconds to wait for brokers that restart
_AHEAD = 20_000  # records of a partition that the client may prefetch beyond a batch
_CHUNK_RECORDS, _CHUNK_BYTES = 25_000, 2**25  # limits of a chunk


@dataclass(frozen=True, slots=True)
class KafkaReader(LogReader):
    """Reads topics of Kafka brokers: committed records only.

    With a ``pattern`` it reads all topics whose whole name matches the regular expression.
    """

    connection: Connection = field(default_factory=Connection.of)
    pattern: str | None = None

    broker: ClassVar[str] = KAFKA

    @classmethod
    def of_kafka(
        cls, options: Mapping[str, str], connection: Connection | None, *, also: Sequence[str] = ()
    ) -> "KafkaReader":
        """Create a reader from the options of the source."""
        if connection is None:
            raise ConfigurationError('the source needs .option("kafka.bootstrap.servers", "…")')
        pattern = options.get("subscribePattern")
        if pattern is not None:
            _check_pattern(pattern)
        also = ("subscribePattern", *also)
        return cls.of(
            options, connection.bootstrap, also=also, pattern=pattern, connection=connection
        )

    def reads(self, topic: str) -> bool:
        """Return whether a topic of this name is read."""
        if self.pattern is None:
            return topic in self.topics
        return topic not in _INTERNAL and re.fullmatch(self.pattern, topic) is not None

    def _names(self) -> tuple[str, ...]:
        if self.pattern is None:
            return self.topics
        return tuple(filter(self.reads, _topics(self.connection).topics()))

    def _firsts(self) -> PartitionOffsets:
        return by_partition(_topics(self.connection).start_offsets(*self._names()))

    def _look(self) -> TopicEnds:
        ids, ends = _topics(self.connection).ids_and_ends(*self._names())
        return TopicEnds(ids, by_partition(ends))

    def times(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> PartitionOffsets:
        """Return the timestamp of the first record of each range of offsets [start, end)."""
        return first_times(self.connection, ranges, timeout=_TIMEOUT)

    def _columns(self, ranges: list[OffsetRange]) -> Iterator[tuple[OffsetRange, Columns]]:
        for one in ranges:
            for chunk in self.chunks([one]):
                yield one, chunk.columns

    def chunks(self, ranges: list[OffsetRange]) -> Iterator[Chunk]:
        """Read all ranges concurrently, with a consumer that this process caches."""
        spans = {TopicPartition(one.topic, one.partition): (one.start, one.end) for one in ranges}
        waiting: dict[TopicPartition, list[Message]] = {}
        count = size = 0
        reading = read_spans(self.connection, spans, timeout=_TIMEOUT, keep=True, ahead=_AHEAD)
        for messages in reading:
            if len(spans) == 1:
                waiting.setdefault(next(iter(spans)), []).extend(messages)
            else:
                for message in messages:
                    waiting.setdefault(topic_partition(message), []).append(message)
            count += len(messages)
            size += sum(map(len, messages))
            if count >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
                yield from _chunks_of(waiting)
                count = size = 0
        yield from _chunks_of(waiting)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"the pattern {pattern!r} is not a Python regular expression: {error}"
        ) from error


_clients: dict[tuple[Any, ...], Topics] = {}


def _topics(connection: Connection) -> Topics:
    """Return the process-wide client for the topics of a connection."""
    key = (connection.bootstrap, *sorted(connection.settings.items()))
    if key not in _clients:
        _clients[key] = Topics(connection, timeout=_TIMEOUT)
    return _clients[key]


def _chunks_of(waiting: dict[TopicPartition, list[Message]]) -> Iterator[Chunk]:
    """Yield the waiting messages as chunks and clear them."""
    for (topic, partition), messages in waiting.items():
        columns = Columns(
            cast("list[int]", list(map(Message.offset, messages))),
            [time for _, time in map(Message.timestamp, messages)],
            cast("list[bytes | None]", list(map(Message.key, messages))),
            cast("list[bytes | None]", list(map(Message.value, messages))),
            list(map(headers_of, messages)),
        )
        yield Chunk(topic, partition, columns.offsets[0], columns)
    waiting.clear()
