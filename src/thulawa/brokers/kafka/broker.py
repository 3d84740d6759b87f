"""Kafka as a `Broker`."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import Membership, commit_offsets, committed, delete_groups
from thulawa.brokers.kafka.kafka_stream_clients import KafkaStreamConsumer, KafkaStreamProducer
from thulawa.brokers.kafka.reading import columns_of, read_spans, record_of
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.brokers.kafka.topics import Cleanup, Topics, TopicSpec, reachable
from thulawa.brokers.kafka.transactions import (
    SinkBatch,
    SinkProducer,
    SinkSpec,
    close_producers,
    fence,
    markers,
    transaction,
    write,
)
from thulawa.brokers.port import (
    LARGEST_RECORD,
    Broker,
    Committed,
    RecordColumns,
    TopicMetadata,
    TopicSize,
    WriterId,
)
from thulawa.core.markers import LastBatch
from thulawa.core.types import ConsumerRecord, Offsets, ProducerRecord, TopicPartition
from thulawa.errors import UnknownTopic

_APPEND_TIMEOUT = 30.0  # seconds
_DELIVERY_TIMEOUT = 120.0
_BATCH_OVERHEAD = 61 + 21  # most bytes of a batch of one record, without key, value and headers
# they accept what the embedded log accepts: state may be larger than any output
_INTERNAL = {"segment.bytes": str(50 * 2**20), "max.message.bytes": str(LARGEST_RECORD + 2**20)}
# a batch that is rolled back needs the tombstones it has written, as long as markers are retained
_COMPACTED = {"delete.retention.ms": str(7 * 86_400_000), **_INTERNAL}
# the settings of Kafka Streams' repartition topics: no record is removed before it has been read
_UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1", **_INTERNAL}


class KafkaBroker(Topics, Broker):
    """The brokers of a Kafka cluster, by confluent-kafka."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lazy=True)

    def __repr__(self) -> str:
        return f"KafkaBroker({self.connection!r})"

    def __reduce__(self) -> tuple[type["KafkaBroker"], tuple[Connection]]:
        return KafkaBroker, (self.connection,)  # clients cannot be pickled

    @property
    def address(self) -> str:
        return f"kafka://{self.connection.bootstrap}"

    def check(self) -> None:
        reachable(self.connection)

    def describe(self, topic: str) -> TopicMetadata:
        partitions = self.partitions(topic).get(topic)
        if partitions is None:
            raise UnknownTopic("there is no such topic", topic=topic)
        settings = self.settings(topic)
        return TopicMetadata(
            topic,
            partitions,
            self.topic_ids(topic).get(topic),
            "compact" in settings["cleanup.policy"],
            int(settings["max.message.bytes"]),
        )

    def max_record_size(self, topic: str) -> int:
        """Return the most bytes of a record, without the overhead of its batch."""
        if not self.partitions(topic):
            raise UnknownTopic("there is no such topic", topic=topic)
        return self.largest_record(topic) - _BATCH_OVERHEAD

    def size(self, topic: str) -> TopicSize:
        """Return an upper bound of the records of a topic; its bytes are not known."""
        starts, ends = self.start_offsets(topic)[topic], self.end_offsets(topic)[topic]
        return TopicSize(sum(end - starts[number] for number, end in ends.items()), None)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        compact: bool = False,
        unlimited: bool = False,
        retention: float | None = None,
    ) -> None:
        settings = _COMPACTED if compact else _UNLIMITED if unlimited else {}
        if retention is not None:
            settings = settings | {"retention.ms": str(int(retention * 1000))}
        cleanup: Cleanup = "compact" if compact else "delete"
        self.ensure(topic, TopicSpec(partitions=partitions, cleanup=cleanup, settings=settings))

    def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, timeout: float = 30.0
    ) -> Iterator[ConsumerRecord]:
        for messages in read_spans(self.connection, ranges, timeout=timeout):
            yield from map(record_of, messages)

    def read_columns(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[RecordColumns]:
        import pyarrow as pa  # noqa: PLC0415 not everybody who uses Kafka needs it

        from thulawa.brokers.columns import int_column  # noqa: PLC0415 as above

        for messages in read_spans(self.connection, {partition: (start, end)}, keep=True):
            offsets, times, values = columns_of(messages)
            yield RecordColumns(int_column(offsets), pa.array(times, pa.int64()), values)

    def append(self, topic: str, records: Sequence[ProducerRecord]) -> None:
        sink = SinkSpec(
            connection=self.connection,
            application="thulawa",
            name="append",
            guarantee="at_least_once",
            delivery_timeout=_APPEND_TIMEOUT,
        )
        write(sink, SinkBatch("", 0, 0), [list(_outgoing(topic, records))])

    def commit(self, group: str, offsets: Offsets, *, query: str = "", batch: int = -1) -> None:
        stamp = f"{query}/{batch}"
        commit_offsets(self.connection, group, offsets, client=self._client, metadata=stamp)

    def committed(
        self, group: str, topics: Collection[str] | None = None, *, query: str = ""
    ) -> Committed:
        found: Offsets = {}
        batches: set[int | None] = set()
        for one in committed(self.connection, group):
            if topics is None or one.topic in topics:
                found.setdefault(one.topic, {})[one.partition] = one.offset
                of, _, batch = (one.metadata or "").rpartition("/")
                batches.add(int(batch) if query and of == query else None)
        return Committed(found, batches.pop() if len(batches) == 1 else None)

    def join_group(self, group: str, topics: Sequence[str]) -> Membership:
        """Join a consumer group, for the assignment alone."""
        return Membership(self.connection, group, topics)

    def delete_groups(self, *groups: str) -> None:
        delete_groups(self.connection, *groups)

    @contextmanager
    def transaction(
        self, writer: WriterId, task: int, batch: LastBatch
    ) -> Iterator["_KafkaTransaction"]:
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
        return markers(self._sink(writer), writer.query, tasks, timeout=timeout)

    def fence(self, writer: WriterId, tasks: Collection[int] | None = None) -> None:
        fence(self._sink(writer), tasks)

    def delete_writer(self, writer: WriterId) -> None:
        """Delete the consumer group with the markers, and their topic if it has no other use."""
        sink = self._sink(writer)
        delete_groups(self.connection, sink.group)
        if writer.marker_topic is None and self.partitions(sink.marker_topic):
            self.delete_topic(sink.marker_topic)

    def stream_consumer(self, positions: Mapping[TopicPartition, int]) -> KafkaStreamConsumer:
        return KafkaStreamConsumer(self.connection, positions)

    def stream_producer(
        self, transactional_id: str | None, *, timeout: float = 60.0
    ) -> KafkaStreamProducer:
        return KafkaStreamProducer(self.connection, transactional_id, timeout)

    def close(self) -> None:
        """Close the idle producers of this process."""
        close_producers()

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
        return self._opened is None

    def write(self, topic: str, records: Iterable[ProducerRecord]) -> None:
        if self._opened is not None:
            self._opened.send_all([list(_outgoing(topic, records))])


def _outgoing(topic: str, records: Iterable[ProducerRecord]) -> Iterator[OutRecord]:
    for key, value, headers, timestamp, partition in records:
        yield OutRecord(
            topic, key, value, -1 if partition is None else partition, timestamp, headers
        )
