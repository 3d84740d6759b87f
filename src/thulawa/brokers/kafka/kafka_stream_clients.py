"""Continuous readers and writers of Kafka."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as ClientPartition

from thulawa.brokers.kafka.client_errors import (
    ProducerErrors,
    call_with_timeout,
    retry_transient,
    transient,
    translated,
)
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.port import PolledRecords
from thulawa.core.types import Headers, Offsets, ProducerRecord, TopicPartition
from thulawa.errors import BrokerUnreachable

_ANSWER = 30.0  # seconds for one request
_GROUP = "thulawa-stream"  # of consumers that are assigned their partitions


class KafkaStreamConsumer:
    """Reads partitions of Kafka, committed records only."""

    def __init__(self, connection: Connection, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer = Consumer(
            {
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 10,  # the default of a second is a gap of a second
                "fetch.message.max.bytes": 8 * 2**20,
                "queued.min.messages": 100_000,
                "queued.max.messages.kbytes": 128 * 1024,
                **connection.client(),
                "group.id": _GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )
        assigned = [ClientPartition(*place, offset) for place, offset in positions.items()]
        self._consumer.assign(assigned)

    def poll(self, max_records: int, timeout: float) -> list[PolledRecords]:
        """Return records as soon as there are any; an empty list after ``timeout`` seconds."""
        messages = self._consumer.consume(1, timeout)
        if messages and max_records > 1:
            messages += self._consumer.consume(max_records - 1, 0)
        if not any(map(Message.error, messages)):
            return _by_partition(messages)
        polled: list[PolledRecords] = []
        records: list[Message] = []
        for message in messages:
            if (error := message.error()) is None:
                records.append(message)
            elif error.code() == Code._PARTITION_EOF:  # noqa: SLF001 librdkafka's own code
                polled += _by_partition(records)  # of any partition: they come before its end
                records = []
                end, offset = _partition(message), message.offset() or 0
                polled.append(PolledRecords(end, (), (), (), (), (), offset, at_end=True))
            elif not transient(error):
                topic, number = _partition(message)
                raise translated(error, "reading", topic=topic, partition=number)
        return polled + _by_partition(records)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until they are resumed."""
        self._consumer.pause([ClientPartition(*place) for place in partitions])

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._consumer.resume([ClientPartition(*place) for place in partitions])

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _by_partition(messages: list[Message]) -> list[PolledRecords]:
    """Return the records of each partition as columns, most of it in C: the hot path of reading."""
    if not messages:
        return []
    numbers, topics = set(map(Message.partition, messages)), set(map(Message.topic, messages))
    if len(numbers) == 1 and len(topics) == 1:
        return [_columns(_partition(messages[0]), messages)]
    groups: dict[TopicPartition, list[Message]] = {}
    for message in messages:
        groups.setdefault(_partition(message), []).append(message)
    return [_columns(place, some) for place, some in groups.items()]


def _columns(place: TopicPartition, messages: list[Message]) -> PolledRecords:
    offsets: Any = list(map(Message.offset, messages))
    headers: Any = list(map(Message.headers, messages))
    return PolledRecords(
        place,
        offsets,
        [timestamp for _, timestamp in map(Message.timestamp, messages)],
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        [tuple(pairs or ()) for pairs in headers] if any(headers) else [()] * len(messages),
        offsets[-1] + 1,
        at_end=False,
    )


class KafkaStreamProducer:
    """Writes to Kafka, in transactions if it has an id for them."""

    def __init__(
        self, connection: Connection, transactional_id: str | None, timeout: float
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._errors = ProducerErrors()
        self._open = False
        self._transactional = transactional_id is not None
        settings: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "linger.ms": 5 if self._transactional else 1,
            "batch.num.messages": 50_000,
            "batch.size": 1_000_000,
            "message.max.bytes": 64 * 1024 * 1024,  # the topic's own limit is what counts
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
            "enable.idempotence": True,
            "message.timeout.ms": int(timeout * 1_000),
            "delivery.report.only.error": True,
            **self._errors.callbacks,
            **connection.client(),
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = int(timeout * 1_000)
        self._producer = Producer(settings)
        # positional arguments cost a third of keywords: topic, value, key, partition, callback,
        # on_delivery, timestamp, headers
        self._produce: Any = self._producer.produce
        # the client asks for a consumer, of which it needs the group alone
        self._groups: dict[str, Consumer] = {}
        if self._transactional:
            self._call("beginning to write", self._producer.init_transactions)

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers = (),
    ) -> None:
        """Pass a record to the client."""
        if self._transactional and not self._open:
            self._begin()
        number = -1 if partition is None else partition
        pairs: Any = [*headers] if headers else None  # the client accepts no tuple
        while True:
            try:
                # 0 means now to the client; a millisecond after 1970 is nearer to the truth
                self._produce(topic, value, key, number, None, None, timestamp or 1, pairs)
            except BufferError:
                self._producer.poll(0.05)
                self._errors.raise_failed()
            except KafkaException as error:
                self._errors.raise_failed()
                raise translated(error, "sending", topic=topic) from error
            else:
                return

    def send_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        """Pass many records to the client."""
        if self._transactional and not self._open:
            self._begin()
        produce = self._produce
        rows = zip(keys, values, timestamps, headers, strict=True)
        for key, value, timestamp, pairs in rows:
            try:
                if pairs:
                    produce(topic, value, key, -1, None, None, timestamp or 1, [*pairs])
                else:
                    produce(topic, value, key, -1, None, None, timestamp or 1)
            except (BufferError, KafkaException):  # send() waits, or raises
                self.send(topic, None, key, value, timestamp, pairs)

    def dispatch(self) -> None:
        """Handle delivery reports; the client sends on a thread of its own."""
        self._producer.poll(0)
        self._errors.raise_failed()

    def commit(
        self,
        group: str,
        offsets: Offsets,
        last: tuple[str, Sequence[ProducerRecord]] | None = None,
    ) -> None:
        """Store everything that was sent, and the offsets of a consumer group."""
        if last is not None:
            if not self._transactional:
                self._flush()
            for key, value, headers, timestamp, partition in last[1]:
                self.send(last[0], partition, key, value, timestamp or 0, headers)
        positions = [
            ClientPartition(topic, number, offset)
            for topic, at in offsets.items()
            for number, offset in at.items()
        ]
        consumer = self._consumer_of(group)
        if not self._transactional:
            self._flush()
            if positions:
                self._call(
                    "committing offsets",
                    lambda _: consumer.commit(offsets=positions, asynchronous=False),
                )
            return
        if not self._open:
            self._begin()
        self._flush()
        metadata = consumer.consumer_group_metadata()
        if positions:
            self._call(
                "committing offsets",
                lambda seconds: self._producer.send_offsets_to_transaction(
                    positions, metadata, seconds
                ),
            )
        self._call("committing", self._producer.commit_transaction)
        self._open = False

    @property
    def pending(self) -> bool:
        """Whether a transaction is open or, without one, records wait for the broker."""
        return self._open or (not self._transactional and len(self._producer) > 0)

    def close(self) -> None:
        """Abort what is not committed, and close the connections."""
        with suppress(KafkaException, BrokerUnreachable, SystemError):
            self._producer.purge()
            if self._open:
                call_with_timeout(self._producer.abort_transaction, _ANSWER)
        for consumer in self._groups.values():
            consumer.close()

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise translated(error, "beginning a transaction") from error
        self._open = True

    def _consumer_of(self, group: str) -> Consumer:
        if group not in self._groups:
            settings = {**self._connection.client(), "group.id": group, "enable.auto.commit": False}
            self._groups[group] = Consumer(settings)
        return self._groups[group]

    def _flush(self) -> None:
        self._errors.flush(self._producer, self._timeout + _ANSWER)

    def _call(self, doing: str, step: Any) -> None:
        """Make a request, retried while its errors are transient."""
        try:
            retry_transient(lambda: call_with_timeout(step, _ANSWER), self._timeout)
        except KafkaException as error:
            self._errors.raise_failed()
            raise translated(error, doing) from error
