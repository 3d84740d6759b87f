"""Kafka as a `Broker`."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from confluent_kafka.admin import AdminClient

from thulawa.brokers.embedded.record_checks import LARGEST_RECORD
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import commit_offsets, committed, delete_groups
from thulawa.brokers.kafka.kafka_stream_clients import KafkaStreamConsumer, KafkaStreamProducer
from thulawa.brokers.kafka.reading import columns_of, read_between, read_spans, record_of
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.brokers.kafka.topics import Topics, TopicSpec, reachable
from thulawa.brokers.kafka.transactions import (
    SinkBatch,
    SinkProducer,
    SinkSpec,
    fence,
    forget_kept,
    markers,
    transaction,
    write,
)
from thulawa.brokers.port import Committed, RecordColumns, TopicMetadata, WriterId
from thulawa.core.markers import LastBatch
from thulawa.core.types import (
    ConsumerRecord,
    Offsets,
    ProducerRecord,
    TopicPartition,
)
from thulawa.errors import UnknownTopic

__all__ = ["KafkaBroker"]

_APPEND_TIMEOUT = 30.0  # seconds
_DELIVERY_TIMEOUT = 120.0
# they accept what the embedded log accepts: state may be larger than any output
_INTERNAL = {"segment.bytes": str(50 * 2**20), "max.message.bytes": str(LARGEST_RECORD + 2**20)}
# a batch that is taken back needs the tombstones it has written, for as long as markers are kept
_COMPACTED = {"delete.retention.ms": str(7 * 86_400_000), **_INTERNAL}
# the settings of Kafka Streams' repartition topics: no record is removed before it has been read
_UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1", **_INTERNAL}


class KafkaBroker:
    """The brokers of a Kafka cluster, by confluent-kafka."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __repr__(self) -> str:
        return f"KafkaBroker({self.connection!r})"

    def __getstate__(self) -> dict[str, Connection]:
        return {"connection": self.connection}  # clients cannot be pickled

    @cached_property
    def _topics(self) -> Topics:
        return Topics(self.connection)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self.connection.client())

    @property
    def address(self) -> str:
        """The address of the brokers."""
        return f"kafka://{self.connection.bootstrap}"

    def check(self) -> None:
        """Raise unless a broker answers and accepts the credentials."""
        reachable(self.connection)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.names()

    def partitions(self, *topics: str) -> dict[str, int]:
        """Return the number of partitions of those of the topics that exist."""
        found = self._topics.partitions(*topics)
        return {name: count for name, count in found.items() if count is not None}

    def topic_ids(self, *topics: str) -> dict[str, str]:
        """Return the ids of those of the topics that exist; brokers before 2.8 have none."""
        return self._topics.ids(*topics)

    def describe(self, topic: str) -> TopicMetadata:
        """Return the settings of a topic."""
        partitions = self._topics.partitions(topic)[topic]
        if partitions is None:
            raise UnknownTopic("there is no such topic", topic=topic)
        settings = self._topics.settings(topic)
        return TopicMetadata(
            topic,
            partitions,
            self.topic_ids(topic).get(topic),
            "compact" in settings["cleanup.policy"],
            int(settings["max.message.bytes"]),
        )

    def create_topic(
        self, topic: str, partitions: int = 1, *, compact: bool = False, unlimited: bool = False
    ) -> None:
        """Create a topic; do nothing if it exists with as many partitions and this compaction."""
        spec = TopicSpec(
            partitions=partitions,
            cleanup="compact" if compact else "delete",
            settings=_COMPACTED if compact else _UNLIMITED if unlimited else {},
        )
        self._topics.ensure(topic, spec)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""
        self._topics.delete(topic)

    def delete_records(self, before: Offsets) -> None:
        """Delete the records before an offset of each partition."""
        self._topics.delete_records(before)

    def start_offsets(self, *topics: str) -> Offsets:
        """Return the offset of the first record that each partition still has."""
        return self._topics.start_offsets(*topics)

    def end_offsets(self, *topics: str, committed: bool = True) -> Offsets:
        """Return the offset behind the last record of each partition."""
        return self._topics.end_offsets(*topics, committed=committed)

    def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, timeout: float = 30.0
    ) -> Iterator[ConsumerRecord]:
        """Yield the committed records of ranges of offsets, those of a partition in their order."""
        for messages in read_spans(self.connection, ranges, timeout=timeout):
            yield from map(record_of, messages)

    def read_columns(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[RecordColumns]:
        """Yield the committed records with offsets in [start, end) as columns."""
        import pyarrow as pa  # noqa: PLC0415 not everybody who uses Kafka needs it

        from thulawa.brokers.columns import int_column  # noqa: PLC0415 as above

        topic, number = partition
        for messages in read_between(self.connection, topic, {number: (start, end)}, keep=True):
            offsets, times, values = columns_of(messages)
            yield RecordColumns(int_column(offsets), pa.array(times, pa.int64()), values)

    def append(self, topic: str, records: Sequence[ProducerRecord]) -> None:
        """Write records outside any transaction; they are stored when this returns."""
        sink = SinkSpec(
            connection=self.connection,
            application="thulawa",
            name="append",
            guarantee="at_least_once",
            delivery_timeout=_APPEND_TIMEOUT,
        )
        write(sink, SinkBatch("", 0, 0), [list(_outgoing(topic, records))])

    def commit(self, group: str, offsets: Offsets, *, query: str = "", batch: int = -1) -> None:
        """Commit offsets of a consumer group, with the batch of a query that they follow."""
        stamp = f"{query}/{batch}"
        commit_offsets(self.connection, group, offsets, client=self._admin, metadata=stamp)

    def committed(
        self, group: str, topics: Collection[str] | None = None, *, query: str = ""
    ) -> Committed:
        """Return what a group has committed for some topics, or for all."""
        found: Offsets = {}
        batches: set[int | None] = set()
        for one in committed(self.connection, group):
            if topics is None or one.topic in topics:
                found.setdefault(one.topic, {})[one.partition] = one.offset
                of, _, batch = (one.metadata or "").rpartition("/")
                batches.add(int(batch) if query and of == query else None)
        return Committed(found, batches.pop() if len(batches) == 1 else None)

    def delete_groups(self, *groups: str) -> None:
        """Delete consumer groups; one that does not exist is no error."""
        delete_groups(self.connection, *groups)

    @contextmanager
    def transaction(
        self, writer: WriterId, task: int, batch: LastBatch
    ) -> Iterator["_KafkaTransaction"]:
        """Begin a transaction that writes records and the marker of a batch atomically."""
        part = SinkBatch(writer.query, batch.number, task, batch.layout)
        with transaction(self._sink(writer), part) as opened:
            yield _KafkaTransaction(opened)

    def markers(
        self,
        writer: WriterId,
        tasks: Collection[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[int, LastBatch]:
        """Return the last batch of these tasks, or of all, of those that have committed any."""
        return markers(self._sink(writer), writer.query, tasks, timeout=timeout)

    def fence(self, writer: WriterId, tasks: Collection[int] | None = None) -> None:
        """Abort open transactions of these tasks, or of all that ever wrote."""
        fence(self._sink(writer), tasks)

    def delete_writer(self, writer: WriterId) -> None:
        """Delete the consumer group with the markers, and their topic if it has no other use."""
        sink = self._sink(writer)
        delete_groups(self.connection, sink.group)
        if writer.marker_topic is None and self.partitions(sink.marker_topic):
            self.delete_topic(sink.marker_topic)

    def stream_consumer(self, positions: Mapping[TopicPartition, int]) -> KafkaStreamConsumer:
        """Return a consumer that reads these partitions from these offsets on."""
        return KafkaStreamConsumer(self.connection, positions)

    def stream_producer(
        self, transactional_id: str | None, *, timeout: float = 60.0
    ) -> KafkaStreamProducer:
        """Return a producer."""
        return KafkaStreamProducer(self.connection, transactional_id, timeout)

    def close(self) -> None:
        """Close the producers that this process keeps between transactions."""
        forget_kept()

    def _sink(self, writer: WriterId) -> SinkSpec:
        return SinkSpec(
            connection=self.connection,
            application=writer.application,
            name=writer.name,
            markers=writer.marker_topic,
            transaction_timeout=writer.timeout,
            delivery_timeout=min(_DELIVERY_TIMEOUT, writer.timeout),
        )


class _KafkaTransaction:
    """Records go to the brokers at once, and become visible with the commit."""

    def __init__(self, opened: SinkProducer | None) -> None:
        self._opened = opened

    @property
    def skipped(self) -> bool:
        """Whether the batch was written before."""
        return self._opened is None

    def write(self, topic: str, records: Iterable[ProducerRecord]) -> None:
        """Send records."""
        if self._opened is not None:
            self._opened.send_all([list(_outgoing(topic, records))])


def _outgoing(topic: str, records: Iterable[ProducerRecord]) -> Iterator[OutRecord]:
    for key, value, headers, timestamp, partition in records:
        yield OutRecord(
            topic, key, value, -1 if partition is None else partition, timestamp, headers
        )
