"""Read committed records of ranges of offsets, or up to the end of topics."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from confluent_kafka import Consumer, Message
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as ClientPartition

from thulawa.brokers.kafka.client_errors import transient, translate_errors, translated
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics
from thulawa.core.types import ConsumerRecord, Headers, TopicPartition
from thulawa.errors import BrokerUnreachable
from thulawa.priority.placement import LOOK_BACK

_CHUNK = 10_000
_POLL = 0.02  # seconds


def read_to_end(
    connection: Connection, topic: str, *, timeout: float = 30.0
) -> Iterator[list[Message]]:
    """Yield the records of a topic up to its end now; open transactions are waited for."""
    topics = Topics(connection)
    starts = topics.start_offsets(topic)[topic]
    ends = topics.end_offsets(topic, committed=False)[topic]
    spans = {TopicPartition(topic, number): (starts[number], end) for number, end in ends.items()}
    return read_spans(connection, spans, timeout=timeout)


def read_spans(
    connection: Connection,
    spans: Mapping[TopicPartition, tuple[int, int]],
    *,
    timeout: float = 30.0,
    keep: bool = False,
    ahead: int | None = None,
) -> Iterator[list[Message]]:
    """Yield the records of topic-partitions with offsets in [start, end), each in offset order.

    Raise `OffsetOutOfRange` where retention has removed the start, and `BrokerUnreachable` when
    nothing comes for ``timeout`` seconds although there is more. With ``keep`` the next call in
    this process reuses the consumer: creating one costs as much as reading thousands of records.
    ``ahead`` bounds how many records of a partition the client prefetches, which are discarded at
    the end.
    """
    left = {one: end for one, (start, end) in spans.items() if end > start}
    if not left:
        return
    with _consumer(connection, ahead=ahead, keep=keep) as consumer:
        consumer.assign([ClientPartition(*one, spans[one][0]) for one in left])
        count = sum(end - spans[one][0] for one, end in left.items())
        yield from _until(consumer, left, count, timeout)


def first_times(
    connection: Connection,
    spans: Mapping[TopicPartition, tuple[int, int]],
    *,
    timeout: float = 30.0,
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record of each topic-partition in [start, end), if any."""
    left = {one: end for one, (start, end) in spans.items() if end > start}
    found: dict[TopicPartition, int] = {}
    with _consumer(connection, ahead=1, keep=True) as consumer:
        consumer.assign([ClientPartition(*one, spans[one][0]) for one in left])
        deadline = time.monotonic() + timeout
        while left:
            for message in _records(consumer, len(left)):
                partition = topic_partition(message)
                if (message.offset() or 0) < left.pop(partition, 0):
                    found[partition] = message.timestamp()[1]
                    consumer.pause([ClientPartition(*partition)])
            if left:
                _drop_finished(consumer, left)
            if left and time.monotonic() > deadline:
                raise BrokerUnreachable(
                    f"nothing came for {timeout:.0f} s", topic=next(iter(left))[0]
                )
    return found


@contextmanager
def _consumer(connection: Connection, *, ahead: int | None, keep: bool) -> Iterator[Consumer]:
    """Create or reuse a consumer of committed records; with ``keep``, keep it unless it failed."""
    settings: dict[str, str | float | bool] = {
        **connection.client(),
        "group.id": "thulawa-reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        # a fetch request that waits for more records delays those for other partitions: by
        # default half a second for each assignment
        "fetch.wait.max.ms": 10,
    }
    if ahead is not None:
        settings |= {"queued.min.messages": ahead, "fetch.queue.backoff.ms": 10}
    key = tuple(sorted(settings.items()))
    consumer = _idle.pop(key, None) or Consumer(settings)
    done = False
    try:
        yield consumer
        done = True
    finally:
        if done and keep:
            # a partition that is paused would be so when it is assigned again
            consumer.resume(consumer.assignment())
            consumer.unassign()  # else it would continue to fetch
            _idle[key] = consumer
        else:
            consumer.close()


# Only consumers that have read everything they were asked for.
_idle: dict[tuple[tuple[str, object], ...], Consumer] = {}


def columns_of(
    messages: list[Message],
) -> tuple[Sequence[int], list[int], list[bytes | None]]:
    """Return offsets (a range, where none is missing), timestamps and values, in columns."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    whole = last - first == len(messages) - 1
    offsets = range(first, last + 1) if whole else [one.offset() or 0 for one in messages]
    times = [time for _, time in map(Message.timestamp, messages)]
    return offsets, times, cast("list[bytes | None]", list(map(Message.value, messages)))


def record_of(message: Message) -> ConsumerRecord:
    """Return a message of the client as the record it is."""
    return ConsumerRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers_of(message),
    )


def headers_of(message: Message) -> Headers:
    """Return the headers of a record that was read, as names and bytes."""
    return tuple(cast("list[tuple[str, bytes | None]]", message.headers() or ()))


def newest(connection: Connection, topic: str, most: int = LOOK_BACK) -> dict[int, list[Headers]]:
    """Return the headers of the newest records of each partition, up to a number of offsets."""
    topics = Topics(connection)
    starts, ends = topics.start_offsets(topic)[topic], topics.end_offsets(topic)[topic]
    found: dict[int, list[Headers]] = {partition: [] for partition in ends}
    spans = {
        TopicPartition(topic, number): (max(starts[number], end - most), end)
        for number, end in ends.items()
    }
    for messages in read_spans(connection, spans):
        for message in messages:
            found[message.partition() or 0].append(headers_of(message))
    return found


def _until(
    consumer: Consumer, left: dict[TopicPartition, int], ahead: int, timeout: float
) -> Iterator[list[Message]]:
    last = time.monotonic()
    partitions = len(left)
    while left:
        # No more than there are: the client waits for as many as it is asked for. There may be
        # fewer, since the end of a transaction has an offset: so the wait is short.
        messages = _records(consumer, min(_CHUNK, ahead))
        ends = dict(left)
        ahead, beyond = _drop_finished(consumer, left)
        if beyond or len(ends) < partitions:  # else all of them are within their ranges
            messages = [
                one for one in messages if (one.offset() or 0) < ends.get(topic_partition(one), 0)
            ]
        if messages:
            last = time.monotonic()
            yield messages
        elif left and time.monotonic() - last > timeout:
            raise BrokerUnreachable(
                f"nothing came for {timeout:.0f} s; is a transaction still open?",
                topic=next(iter(left))[0],
            )


def _records(consumer: Consumer, most: int) -> list[Message]:
    """Return the next records; raise where there is an error that does not pass."""
    messages = consumer.consume(most, timeout=_POLL)
    failed = [(error, one) for one in messages if (error := one.error()) is not None]
    for error, one in failed:
        if error.code() != Code._PARTITION_EOF and not transient(error):  # noqa: SLF001
            raise translated(error, "reading", topic=one.topic(), partition=one.partition())
    return [one for one in messages if one.error() is None] if failed else messages


def topic_partition(message: Message) -> TopicPartition:
    """Return the topic and the partition of a record that was read."""
    # without a call into Python: one for every record of a read of several partitions
    return tuple.__new__(TopicPartition, (message.topic(), message.partition()))


def _drop_finished(consumer: Consumer, left: dict[TopicPartition, int]) -> tuple[int, bool]:
    """Drop and pause partitions whose position, not their last record, has reached their end.

    The end of a transaction has an offset too. Return how many records may be ahead in the others,
    and whether any was read beyond its end.
    """
    with translate_errors("reading", topic=next(iter(left))[0]):
        positions = consumer.position([ClientPartition(*one) for one in left])
    ahead, beyond = 0, False
    finished = []
    for one in positions:
        partition = TopicPartition(one.topic, one.partition)
        end = left[partition]
        beyond = beyond or one.offset > end
        if one.offset >= end:
            finished.append(ClientPartition(*partition))
            del left[partition]
        else:
            ahead += end - one.offset if one.offset >= 0 else _CHUNK
    if finished and left:
        consumer.pause(finished)  # else the client would fetch more of them
    return ahead, beyond
