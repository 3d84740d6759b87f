"""Read topics up to their end, committed records only: for restoring, checking and tools."""

import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TypeAlias, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from thulawa.core.placing import LOOK_BACK
from thulawa.kafka.connection import Connection
from thulawa.kafka.errors import BrokerUnreachable, translated
from thulawa.kafka.topics import Topics

__all__ = ["await_committed", "columns_of", "headers_of", "newest", "read_between", "read_to_end"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_CHUNK = 10_000


def read_to_end(
    connection: Connection,
    topic: str,
    *partitions: int,
    patience: float = 30.0,
    since: MutableMapping[int, int] | None = None,
    committed: bool = False,
) -> Iterator[list[Message]]:
    """Give the records of partitions (all, unless some are named) up to where they end now.

    ``since`` holds the offsets to begin at, and holds those behind the end when all is read.
    Records of transactions that were aborted are left out; one that is still open is waited for,
    or, with ``committed``, is where they end.
    Raises `BrokerUnreachable` when nothing comes for ``patience`` seconds although there is more:
    never gives fewer records than there are.
    """
    admin = Topics(connection)
    ends = admin.end_offsets(topic, committed=committed)[topic]
    starts = admin.start_offsets(topic)[topic] | dict(since or {})
    spans = {p: (starts[p], end) for p, end in ends.items() if p in (partitions or ends)}
    yield from read_between(connection, topic, spans, patience=patience)
    if since is not None:
        since.update(ends)


def read_between(
    connection: Connection,
    topic: str,
    spans: Mapping[int, tuple[int, int]],
    *,
    patience: float = 30.0,
    keep: bool = False,
) -> Iterator[list[Message]]:
    """Give the records of partitions with offsets in [start, end), in the order of each.

    As `read_to_end`, and raises `OffsetsLost` where retention has removed the start. With ``keep``
    the consumer is kept for the next call in this process, for those that read again and again: to
    make one costs as much as to read thousands of records.
    """
    left = {partition: end for partition, (start, end) in spans.items() if end > start}
    if not left:
        return
    settings = {
        **connection.client(),
        "group.id": "thulawa-reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        # a request that waits for more keeps one for other partitions from being sent: half a
        # second for each assignment, if the client had its way
        "fetch.wait.max.ms": 10,
    }
    key = tuple(sorted(settings.items()))
    consumer = _kept.pop(key, None) or Consumer(settings)
    done = False
    try:
        consumer.assign([TopicPartition(topic, p, spans[p][0]) for p in left])
        yield from _until(consumer, topic, left, patience)
        done = True
    finally:
        if done and keep:
            consumer.unassign()  # else it would go on fetching
            _kept[key] = consumer
        else:
            consumer.close()


# Only consumers that came to the end of what they were to read.
_kept: dict[tuple[tuple[str, object], ...], Consumer] = {}


def columns_of(
    messages: list[Message],
) -> tuple[Sequence[int], list[int], list[bytes | None]]:
    """Give offsets (a range, where none is missing), timestamps and values, in columns."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    whole = last - first == len(messages) - 1
    offsets = range(first, last + 1) if whole else [one.offset() or 0 for one in messages]
    times = [time for _, time in map(Message.timestamp, messages)]
    return offsets, times, cast("list[bytes | None]", list(map(Message.value, messages)))


def headers_of(message: Message) -> Headers:
    """Give the headers of a record that was read, as what they are: names and bytes."""
    return tuple(cast("list[tuple[str, bytes | None]]", message.headers() or ()))


def newest(connection: Connection, topic: str, most: int = LOOK_BACK) -> dict[int, list[Headers]]:
    """Give the headers of the newest records of each partition, by so many offsets at most."""
    topics = Topics(connection)
    starts, ends = topics.start_offsets(topic)[topic], topics.end_offsets(topic)[topic]
    found: dict[int, list[Headers]] = {partition: [] for partition in ends}
    spans = {p: (max(starts[p], end - most), end) for p, end in ends.items()}
    for messages in read_between(connection, topic, spans):
        for message in messages:
            found[message.partition() or 0].append(headers_of(message))
    return found


def await_committed(connection: Connection, *topics: str, patience: float = 60.0) -> None:
    """Wait until no transaction is open in these topics; what is there can all be read then."""
    admin = Topics(connection)
    deadline = time.monotonic() + patience
    while admin.end_offsets(*topics) != admin.end_offsets(*topics, committed=False):
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                f"a transaction has been open for {patience:.0f} s; does somebody still write?",
                topic=", ".join(topics),
            )
        time.sleep(0.1)


def _until(
    consumer: Consumer, topic: str, left: dict[int, int], patience: float
) -> Iterator[list[Message]]:
    last = time.monotonic()
    ahead = _CHUNK
    alone = len(left) == 1
    while left:
        # no more than there are: it waits for as many as it is asked for
        messages = consumer.consume(min(_CHUNK, ahead), timeout=0.2)
        records = _wanted(messages, topic, left, alone=alone)
        # what ends a transaction takes an offset too: the position tells, not the last record
        ahead = _drop_finished(consumer, topic, left)
        if messages:
            last = time.monotonic()
        elif left and time.monotonic() - last > patience:
            raise BrokerUnreachable(
                f"nothing came for {patience:.0f} s; is a transaction still open?", topic=topic
            )
        if records:
            yield records


def _wanted(
    messages: list[Message], topic: str, left: dict[int, int], *, alone: bool
) -> list[Message]:
    """Give the records that are asked for; of a partition ``alone`` the last one tells of all."""
    told = [(error, one) for one in messages if (error := one.error()) is not None]
    for error, one in told:
        if error.code() != Code._PARTITION_EOF:  # noqa: SLF001
            raise translated(error, "reading", topic=topic, partition=one.partition())
    if told:
        messages = [one for one in messages if one.error() is None]
    if alone and messages and (messages[-1].offset() or 0) < next(iter(left.values())):
        return messages
    return [one for one in messages if (one.offset() or 0) < left.get(one.partition() or 0, 0)]


def _drop_finished(consumer: Consumer, topic: str, left: dict[int, int]) -> int:
    """Forget partitions that are read; give how many records may be ahead in the others."""
    try:
        places = consumer.position([TopicPartition(topic, p) for p in left])
    except KafkaException as error:
        raise translated(error, "reading", topic=topic) from error
    ahead = 0
    for place in places:
        if place.offset >= left[place.partition]:
            del left[place.partition]
        else:
            ahead += left[place.partition] - place.offset if place.offset >= 0 else _CHUNK
    return ahead
