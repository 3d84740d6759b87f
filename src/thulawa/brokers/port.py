"""The one port to brokers: everything the library asks of topics, wherever they are.

Two brokers implement `Broker`: the embedded log (``file:./topics``) and Kafka
(``kafka://host:9092``); `open_broker` returns the one of an address. Both pass the contract tests
of ``tests/brokers/test_port.py``. A broker can be pickled, so that tasks on Spark's workers use the
one of the driver.

A *writer* makes a batch of records visible exactly once. Each of its tasks commits a *marker* with
the records, in one transaction: the number of its last batch, and the layout of its tasks
(`thulawa.core.markers`). A batch that is sent again finds its number and is skipped. A transaction
fences every earlier transaction of the same task that is still open, in whichever process it is.

::

    broker = open_broker("file:./topics")
    broker.create_topic("visits", partitions=2)
    writer = WriterId(application="geo", query="a-query-id")
    with broker.transaction(writer, task=0, batch=LastBatch(7)) as transaction:
        transaction.write("visits", [ProducerRecord(b"10.0.0.1", b"/")])
    broker.markers(writer)  # {0: LastBatch(number=7, layout='')}
    for record in read_to_end(broker, "visits"):
        print(record.partition, record.offset, record.key, record.value)
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from thulawa.core.markers import LastBatch
from thulawa.core.secrets import masked_address
from thulawa.core.types import ConsumerRecord, Headers, Offsets, ProducerRecord, TopicPartition
from thulawa.errors import ConfigurationError, TransactionOpen

if TYPE_CHECKING:
    import pyarrow as pa

    from thulawa.brokers.kafka.connection import Connection

LARGEST_RECORD = 16 * 1024 * 1024  # bytes of key and value; compacted and unlimited topics hold it


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's settings.

    A topic that is deleted and created again has another ``id``; None: brokers before Kafka 2.8
    have no ids. ``max_record_bytes`` bounds a record with its headers, and on Kafka the overhead
    of a batch.
    """

    name: str
    partitions: int
    id: str | None
    compact: bool
    max_record_bytes: int


class TopicSize(NamedTuple):
    """The size of a topic, as far as its broker reports it.

    On Kafka ``records`` is an upper bound: offsets that compaction and transactions leave unused
    count too. ``bytes`` is None there.
    """

    records: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterId:
    """The identity of a transactional writer.

    Two writers that run at the same time must not share ``application`` and ``name``; one that is
    started again must keep them. Batch numbers start again from 0 under another ``query``.

    Kafka commits markers as offsets of the consumer group ``application-name``, on the partitions
    of ``marker_topic``, or of a topic that is created for them. The embedded log stores them under
    ``log_key``, or the query. An open transaction of a killed process delays read-committed readers
    of Kafka until another one of the same task begins, or for ``timeout`` seconds.
    """

    application: str
    query: str
    name: str = "sink"
    marker_topic: str | None = None
    log_key: str = ""
    timeout: float = 300.0

    @property
    def group(self) -> str:
        """The consumer group of its markers on Kafka."""
        return f"{self.application}-{self.name}"


class Committed(NamedTuple):
    """The offsets of a consumer group, and after which batch of the query they were committed.

    ``batch`` is None where that is not known, or where it was another query.
    """

    offsets: Offsets
    batch: int | None


class RecordColumns(NamedTuple):
    """Some records of one partition, in offset order, as Arrow columns.

    ``values`` is a list where the client has made Python objects of them already.
    """

    offsets: "pa.Array"
    timestamps: "pa.Array"
    values: "pa.Array | list[bytes | None]"


class GroupMember(Protocol):
    """A member of a group that divides the partitions of topics; belongs to one thread."""

    @property
    def joined(self) -> bool:
        """Whether the first assignment has been made, even an empty one."""

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions of this member now; call it at least every few minutes."""

    def close(self) -> None:
        """Leave the group."""


class PolledRecords(NamedTuple):
    """Records of one partition in columns, in offset order; there may be none.

    ``next_offset`` is the position behind them; with ``at_end`` the broker had no more.
    """

    partition: TopicPartition
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    next_offset: int
    at_end: bool


class StreamConsumer(Protocol):
    """Reads partitions continuously, committed records only; one thread uses it."""

    def poll(self, max_records: int, timeout: float) -> list[PolledRecords]:
        """Return records as soon as there are any; an empty list after ``timeout`` seconds.

        A partition whose end has been reached is reported once, also without records.
        """

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until they are resumed."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these partitions again."""

    def close(self) -> None:
        """Close the connections."""


class StreamProducer(Protocol):
    """Writes records and consumer offsets continuously; one thread uses it at a time.

    One with a transactional id writes exactly once: what was sent since the last commit becomes
    visible with the commit, or not at all. Creating one fences earlier ones of the same id, which
    raise `Fenced`. One without an id sends at once.
    """

    def send(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers = (),
    ) -> None:
        """Send a record, to the partition of its key where ``partition`` is None."""

    def send_columns(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers],
    ) -> None:
        """Send many records to the partitions of their keys, at less cost for each."""

    def dispatch(self) -> None:
        """Put what was sent on its way, without waiting; raise the errors of earlier records."""

    def commit(
        self,
        group: str,
        offsets: Offsets,
        last: tuple[str, Sequence[ProducerRecord]] | None = None,
    ) -> None:
        """Store everything that was sent, and the offsets of a consumer group.

        ``last`` are records of a topic that are stored after all others have been.
        """

    @property
    def pending(self) -> bool:
        """Whether anything was sent since the last commit."""

    def close(self) -> None:
        """Abort what is not committed, and close the connections."""


class Transaction(Protocol):
    """An open transaction of one task of a writer."""

    @property
    def skipped(self) -> bool:
        """Whether the batch was written before: nothing is written now."""

    def write(self, topic: str, records: Iterable[ProducerRecord]) -> None:
        """Add records; nobody reads them before the transaction is committed."""


class Broker(Protocol):
    """Topics, consumer groups and transactions of one broker. Threads may share one.

    Raise the errors of `thulawa.errors`: a topic that does not exist is `UnknownTopic`
    wherever nothing else is said.
    """

    @property
    def address(self) -> str:
        """The address, as `open_broker` accepts it."""

    def check(self) -> None:
        """Raise unless the broker answers and accepts the credentials."""

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def partitions(self, *topics: str) -> dict[str, int]:
        """Return the number of partitions of those of the topics that exist."""

    def topic_ids(self, *topics: str) -> dict[str, str]:
        """Return the ids of those of the topics that exist.

        A topic that is deleted and created again has another. Brokers before Kafka 2.8 have none.
        """

    def describe(self, topic: str) -> TopicMetadata:
        """Return the settings of a topic."""

    def max_record_size(self, topic: str) -> int:
        """Return the most bytes that key, value and headers of a record of a topic may have."""

    def size(self, topic: str) -> TopicSize:
        """Return how many records a topic holds, and how many bytes."""

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        compact: bool = False,
        unlimited: bool = False,
        retention: float | None = None,
    ) -> None:
        """Create a topic; do nothing if it exists with as many partitions and this compaction.

        ``retention`` is in seconds; None: the broker's default. ``unlimited`` sets no retention:
        records stay until `delete_records` removes them. Compacted and unlimited topics accept
        records of 16 MiB. Raise `TopicDiffers` if the topic exists otherwise.
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""

    def delete_records(self, before: Offsets) -> None:
        """Delete the records before an offset of each partition."""

    def start_offsets(self, *topics: str) -> Offsets:
        """Return the offset of the first record that each partition still has."""

    def end_offsets(self, *topics: str, committed: bool = True) -> Offsets:
        """Return the offset behind the last record of each partition.

        With ``committed``, before the first record of an open transaction.
        """

    def read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, timeout: float = 30.0
    ) -> Iterator[ConsumerRecord]:
        """Yield the committed records of ranges [start, end), those of a partition in their order.

        Raise `OffsetOutOfRange` where a start does not exist any more, and a `TimeoutError` where
        a transaction stays open, or the broker silent, for ``timeout`` seconds.
        """

    def read_columns(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[RecordColumns]:
        """Yield the committed records with offsets in [start, end) as columns: the fastest."""

    def append(self, topic: str, records: Sequence[ProducerRecord]) -> None:
        """Write records outside any transaction; they are stored when this returns."""

    def commit(self, group: str, offsets: Offsets, *, query: str = "", batch: int = -1) -> None:
        """Commit offsets of a consumer group, with the batch of a query that they follow."""

    def committed(
        self, group: str, topics: Collection[str] | None = None, *, query: str = ""
    ) -> Committed:
        """Return what a group has committed for some topics, or for all."""

    def join_group(self, group: str, topics: Sequence[str]) -> GroupMember:
        """Join a group, to divide the partitions of topics with its other members.

        Members that name other topics are no members of the same group on the embedded log, and
        are assigned only partitions of their own topics on Kafka.
        """

    def delete_groups(self, *groups: str) -> None:
        """Delete consumer groups; one that does not exist is no error."""

    def transaction(
        self, writer: WriterId, task: int, batch: LastBatch
    ) -> AbstractContextManager[Transaction]:
        """Begin a transaction that writes records and the marker of a batch atomically.

        It is committed where the block ends, and aborted where the block raises. Beginning one
        fences earlier transactions of the task: they raise `Fenced` when they are committed. Raise
        `OlderBatch` where the marker is of a later batch.
        """

    def markers(
        self,
        writer: WriterId,
        tasks: Collection[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[int, LastBatch]:
        """Return the last batch of these tasks, or of all, of those that have committed any.

        Kafka answers when none of them has an open transaction: `fence` tasks that may have died.
        Raise a `TimeoutError` where it has not answered after ``timeout`` seconds.
        """

    def fence(self, writer: WriterId, tasks: Collection[int] | None = None) -> None:
        """Abort open transactions of these tasks, or of all that ever wrote."""

    def delete_writer(self, writer: WriterId) -> None:
        """Delete the markers of a writer that will not come back."""

    def stream_consumer(self, positions: Mapping[TopicPartition, int]) -> StreamConsumer:
        """Return a consumer that reads these partitions from these offsets on."""

    def stream_producer(
        self, transactional_id: str | None, *, timeout: float = 60.0
    ) -> StreamProducer:
        """Return a producer.

        Kafka aborts a transaction that stays open for ``timeout`` seconds; a record that cannot be
        stored in that time is an error.
        """

    def close(self) -> None:
        """Close files and connections; they open again when the broker is used again."""


def open_broker(address: "str | Connection", *, option: str = "log") -> Broker:
    """Return the broker at ``file:PATH``, ``kafka://HOST:PORT``, or of a Kafka `Connection`.

    Nothing is opened or connected yet. ``option`` is how error messages name the address.

    >>> open_broker("visits")
    Traceback (most recent call last):
    ...
    thulawa.errors.ConfigurationError: log='visits' is no address of a broker: write \
file:PATH for an embedded log, or kafka://HOST:PORT
    """
    if not isinstance(address, str) or address.startswith("kafka://"):
        from thulawa.brokers.kafka.broker import KafkaBroker  # noqa: PLC0415 a client of its own
        from thulawa.brokers.kafka.connection import Connection  # noqa: PLC0415

        return KafkaBroker(Connection.of(address))
    if address.startswith("file:"):
        from thulawa.brokers.embedded.embedded_broker import EmbeddedBroker  # noqa: PLC0415 as above

        return EmbeddedBroker(address)
    raise ConfigurationError(
        f"{option}={masked_address(address)!r} is no address of a broker: write file:PATH for an "
        "embedded log, or kafka://HOST:PORT"
    )


def read_to_end(
    broker: Broker,
    topic: str,
    since: Mapping[int, int] | None = None,
    *,
    committed: bool = True,
    timeout: float = 30.0,
) -> Iterator[ConsumerRecord]:
    """Yield the records of a topic up to its end now, those of a partition in their order.

    Partitions are read from the offsets of ``since``, others from their first record. Without
    ``committed``, transactions that are open now are waited for, for ``timeout`` seconds.
    """
    ends = broker.end_offsets(topic, committed=committed)[topic]
    starts = broker.start_offsets(topic)[topic] | dict(since or {})
    ranges = {TopicPartition(topic, number): (starts[number], end) for number, end in ends.items()}
    return broker.read(ranges, timeout=timeout)


def read_partition(broker: Broker, partition: TopicPartition) -> Iterator[ConsumerRecord]:
    """Yield the records of one partition up to its end now."""
    topic, number = partition
    start, end = (
        offsets[topic][number]
        for offsets in (broker.start_offsets(topic), broker.end_offsets(topic))
    )
    return broker.read({partition: (start, end)})


def await_committed(broker: Broker, *topics: str, timeout: float = 60.0) -> None:
    """Wait until no transaction is open in these topics: all their records can be read then.

    Raise `TransactionOpen` after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while broker.end_offsets(*topics) != broker.end_offsets(*topics, committed=False):
        if time.monotonic() > deadline:
            raise TransactionOpen(
                f"a transaction has been open for {timeout:.0f} s", topic=", ".join(topics)
            )
        time.sleep(0.1)
