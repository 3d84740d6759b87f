"""Write batches to Kafka, each exactly once, whatever is killed or run again.

A *task* of a sink writes its part of a batch in one Kafka transaction. In the same transaction
it commits a *marker*: the number of the batch, as the offset of a consumer group on a topic of its
own, with the id of the query and the layout of its tasks as metadata. So the records and the fact
that they are written become visible together or not at all, and a batch that is run again finds its
number and writes nothing. A marker of a later batch, or of the same batch in another layout, is an
error (`thulawa.core.markers`).

Two attempts of one task share a ``transactional.id``: the later one to begin *fences* the earlier,
whose records never become visible. The order of the steps is what makes this safe:

1. ``init_transactions`` ends the transaction of an earlier attempt: committed or aborted, no longer
   open. Only after that is the marker read, so it cannot change without fencing this producer.
2. The marker is sent *before* the records. A reused producer that has been fenced since its last
   batch fails here, while no row has been taken, and is replaced by a new one.
3. The records are sent, then the transaction is committed.

A producer is reused for the next batch of its task in the same process: creating one costs about as
much as a small batch. Only a producer whose last transaction was committed is reused, so its marker
is known and is not read again. After any error it is discarded.

A producer whose broker went away while it was claiming a batch may not recover until its
transaction times out, and may not even heed the timeout it is given (librdkafka 2.16). A claim
therefore has a short timeout, and a new producer retries it: no row has been taken yet.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from thulawa.brokers.kafka.client_errors import (
    ProducerErrors,
    call_with_timeout,
    retry_transient,
    translate_errors,
    translated,
)
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import newest
from thulawa.brokers.kafka.routing import OutRecord, Policies, Router
from thulawa.brokers.kafka.topics import Topics
from thulawa.core.markers import LastBatch, is_written
from thulawa.errors import BrokerError, BrokerUnreachable, ConfigurationError, Fenced
from thulawa.priority.buckets import Buckets
from thulawa.priority.placement import Placing

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]

_ANSWER = 30.0
_CLAIM = 10.0  # less than a broker takes to come back: another producer waits for it
_ABORT = 5.0
_REPORT = 1.0
_MIN_MARKERS = 8
_FENCING_THREADS = 8  # each mostly waits for answers


class _Unexpected(logging.Filter):
    """Drops the client's message that a producer was fenced: it is raised as `Fenced`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "fenced by a newer instance" not in record.getMessage()


_client_log = logging.getLogger("thulawa.kafka.client")
_client_log.addFilter(_Unexpected())


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """A sink: its identity, its brokers and its guarantee. Times are in seconds.

    ``application`` and ``name`` together are the sink's identity: two queries that run at the
    same time must not share it, a query that is started again must keep it. The transaction must
    outlive a batch; the brokers allow 15 minutes by default (``transaction.max.timeout.ms``), and
    after a crash a read-committed reader waits for that long if the application is not started
    again. With ``buckets`` records go to the partitions of their bucket. ``markers`` is the topic
    on whose partitions markers are committed, one to each task; None: one of the sink's own.
    """

    connection: Connection
    application: str
    name: str = "sink"
    guarantee: Guarantee = "exactly_once"
    policies: Policies = field(default_factory=Policies)
    buckets: Buckets | None = None
    transaction_timeout: float = 300.0
    delivery_timeout: float = 120.0
    markers: str | None = None

    def __post_init__(self) -> None:
        if not self.application or not self.name:
            raise ConfigurationError("a sink needs the name of its application, and its own")
        if self.guarantee not in get_args(Guarantee):
            known = ", ".join(get_args(Guarantee))
            raise ConfigurationError(f"guarantee is one of {known}, not {self.guarantee!r}")
        if not 1 <= self.delivery_timeout <= self.transaction_timeout:
            raise ConfigurationError(
                "delivery_timeout must be at least 1 s and at most transaction_timeout"
            )

    @property
    def group(self) -> str:
        """The consumer group that holds the markers."""
        return f"{self.application}-{self.name}"

    @property
    def marker_topic(self) -> str:
        """The topic on whose partitions markers are committed; no record is written there."""
        return self.markers or f"{self.application}-markers"

    def transactional_id(self, task: int) -> str:
        """Return the ``transactional.id`` of a task."""
        return f"{self.application}-{self.name}-{task}"


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """One task's part of a batch of a query.

    ``layout`` names how the query spreads its rows over tasks; empty: unknown, and not compared.
    """

    query: str
    number: int
    task: int
    layout: str = ""

    @property
    def marker(self) -> str:
        """The metadata of its marker."""
        return f"{self.query} {self.layout}".rstrip()


@dataclass(frozen=True, slots=True)
class SinkResult:
    """The number of records that were sent, with dead letters; or the batch was ``skipped``.

    ``dropped`` counts records of unknown buckets that were not sent.
    """

    records: int
    dead_letters: int = 0
    skipped: bool = False
    dropped: int = 0


def write(spec: SinkSpec, batch: SinkBatch, chunks: Iterable[Sequence[OutRecord]]) -> SinkResult:
    """Write a task's part of a batch; with ``exactly_once`` at most once, however often it is run.

    Return when all of it is stored. Raise an error of `thulawa.errors` when it is not, and then no
    read-committed reader ever sees any of it (with ``at_least_once``: it may see some).
    """
    if spec.guarantee == "at_least_once":
        sender = _reused(spec, batch.task) or SinkProducer(spec, batch.task)
        sender.new_batch()
        written = sender.send_all(chunks)
        sender.flush()
        _idle[spec.transactional_id(batch.task)] = sender
        return written
    with transaction(spec, batch) as opened:
        if opened is not None:
            return opened.send_all(chunks)
        for _ in chunks:  # Spark expects its rows to be read
            pass
    return SinkResult(0, skipped=True)


@contextmanager
def transaction(spec: SinkSpec, batch: SinkBatch) -> "Iterator[SinkProducer | None]":
    """Begin a transaction that holds the marker of a batch; yield None if it is written already.

    It is committed where the block ends, and aborted where the block raises.
    """
    sender = _claimed(_reused(spec, batch.task), spec, batch)
    if sender is None:
        yield None
        return
    with sender.aborted_on_error():
        sender.new_batch()
        yield sender
        sender.commit(batch)
    _idle[spec.transactional_id(batch.task)] = sender


def _reused(spec: SinkSpec, task: int) -> "SinkProducer | None":
    """Return the idle producer of a task, if it is of this sink."""
    sender = _idle.pop(spec.transactional_id(task), None)
    if sender is not None and sender.spec != spec:
        sender.close()
        return None
    return sender


def markers(
    spec: SinkSpec,
    query: str,
    tasks: Collection[int] | None = None,
    *,
    timeout: float | None = None,
) -> dict[int, LastBatch]:
    """Return the last batch and the layout of these tasks of a query, or of all.

    Kafka does not answer while one of them has an open transaction: raise `BrokerUnreachable` after
    ``timeout`` seconds, by default after the delivery timeout.
    """
    if not (width := marker_width(spec)):
        return {}
    with _reading(spec) as consumer:
        wanted = [task for task in range(width) if tasks is None or task in tasks]
        return _markers(consumer, spec, wanted, query, timeout)


def marker_width(spec: SinkSpec) -> int:
    """Return how many partitions the marker topic has: no task ever had a higher number."""
    topics = Topics(spec.connection, timeout=spec.delivery_timeout)
    return topics.partitions(spec.marker_topic).get(spec.marker_topic, 0)


def fence(spec: SinkSpec, tasks: Collection[int] | None = None) -> None:
    """Abort the open transactions of earlier writers of this sink; they can write nothing more.

    Without ``tasks``, up to the width of the marker topic: an earlier query may have had more.
    """

    def fence_task(task: int) -> None:
        if (idle := _idle.pop(spec.transactional_id(task), None)) is not None:
            idle.close()
        sender = SinkProducer(spec, task)
        sender.initialize()
        sender.close()

    with ThreadPoolExecutor(_FENCING_THREADS, "fence") as pool:
        list(pool.map(fence_task, range(marker_width(spec)) if tasks is None else tasks))


def close_producers() -> None:
    """Close the idle producers of this process."""
    while _idle:
        _idle.popitem()[1].close()


def _claimed(
    idle: "SinkProducer | None", spec: SinkSpec, batch: SinkBatch
) -> "SinkProducer | None":
    """Return a producer with an open transaction that has the marker; None if all is written."""
    if idle is not None and idle.steady:
        if idle.holds(batch):
            return None
        # fenced when another worker has had this task since
        with suppress(Fenced, BrokerUnreachable):
            idle.begin(batch)
            return idle
    deadline = time.monotonic() + spec.delivery_timeout
    while True:
        sender = SinkProducer(spec, batch.task)
        sender.take_over(batch.query)
        if sender.holds(batch):
            return None
        try:
            sender.begin(batch)
        except BrokerUnreachable:
            if time.monotonic() > deadline:
                raise
        else:
            return sender


class SinkProducer:
    """The producer of one task: it claims, sends and commits batches."""

    def __init__(self, spec: SinkSpec, task: int) -> None:
        self.spec = spec
        self._task = task
        self._errors = ProducerErrors()
        self._last: tuple[str, LastBatch | None] = ("", None)
        self._transactional = spec.guarantee == "exactly_once"
        # a broker that is being restarted is waited for as long as a delivery may take
        self._topics = Topics(spec.connection, timeout=spec.delivery_timeout)
        look = partial(newest, spec.connection)
        placing = None if spec.buckets is None else Placing(spec.buckets, look)
        self._router = Router(self._topics, spec.policies, placing)
        self._producer = Producer(self._settings(), logger=_client_log)
        self._group: Any = None

    def _settings(self) -> dict[str, Any]:
        spec = self.spec
        # a delivery that fails is reported; a report for each that succeeds would cost a call each
        settings: dict[str, Any] = {
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.max.bytes": 64 * 1024 * 1024,  # the topic's own limit is what counts
            "queue.buffering.max.messages": 200_000,
            "enable.idempotence": True,
            "message.timeout.ms": int(spec.delivery_timeout * 1_000),
            "delivery.report.only.error": True,
            **self._errors.callbacks,
            **spec.connection.client(),
        }
        if self._transactional:
            settings["transactional.id"] = spec.transactional_id(self._task)
            settings["transaction.timeout.ms"] = int(spec.transaction_timeout * 1_000)
        return settings

    @property
    def steady(self) -> bool:
        """Whether its connections have had no error since it was created.

        After a broker was away the client may wait for a coordinator until the transaction times
        out, minutes later, whatever time limit it is given; a new one does not.
        """
        try:
            with self._translate_errors("polling connections"):
                self._producer.poll(0)
        except BrokerError:
            self._errors.seen = True
        return not self._errors.seen

    def holds(self, batch: SinkBatch) -> bool:
        """Return whether a batch is written, by the last marker that this producer has seen.

        Raise `StateError` where its number or its layout does not fit the marker.
        """
        query, last = self._last
        return is_written(
            batch.number,
            last if batch.query == query else None,
            writer=f"the sink {self.spec.group}",
            task=self._task,
            layout=batch.layout,
        )

    def initialize(self) -> None:
        """Fence earlier attempts and end their transactions."""
        with self._translate_errors("beginning to write"):
            retry_transient(
                lambda: call_with_timeout(self._producer.init_transactions, _ANSWER),
                self.spec.delivery_timeout,
            )

    def take_over(self, query: str) -> LastBatch | None:
        """Fence earlier attempts and end their transactions; then read the marker."""
        spec, task = self.spec, self._task
        if spec.markers is None:
            least = max(_MIN_MARKERS, 1 << task.bit_length())  # a power of two: it grows seldom
            self._topics.ensure_partitions(spec.marker_topic, least)
        self.initialize()
        with _reading(spec) as consumer:
            self._group = consumer.consumer_group_metadata()
            last = _markers(consumer, spec, [task], query).get(task)
        self._last = (query, last)
        return last

    def begin(self, batch: SinkBatch) -> None:
        """Begin a transaction, and send the marker of the batch in it."""
        marker = TopicPartition(
            self.spec.marker_topic, self._task, batch.number + 1, metadata=batch.marker
        )
        send = self._producer.send_offsets_to_transaction
        with self._translate_errors("claiming a batch"):
            self._producer.begin_transaction()
            retry_transient(
                lambda: call_with_timeout(partial(send, [marker], self._group), _CLAIM), _CLAIM
            )

    def new_batch(self) -> None:
        """Look topics up again from here on: one may have been deleted."""
        self._router.new_batch()

    def send_all(self, chunks: Iterable[Sequence[OutRecord]]) -> SinkResult:
        """Send records; a failed delivery is raised here or by `commit`."""
        count = 0
        for records in chunks:
            self._router.look_up({record.topic for record in records})
            if not self._router.plain:
                records = self._router.route_all(records)  # noqa: PLW2901
                self._router.look_up({record.topic for record in records})
            with self._translate_errors("sending"):
                self._send(records)
            self._errors.raise_failed()
            count += len(records)
        return SinkResult(count, self._router.dead_letters, dropped=self._router.dropped)

    def commit(self, batch: SinkBatch) -> None:
        """Commit the transaction: records and marker become visible."""
        with self._translate_errors("committing"):
            try:
                self._flush()
                retry_transient(
                    lambda: call_with_timeout(self._producer.commit_transaction, _ANSWER),
                    self.spec.delivery_timeout,
                )
            except KafkaException:
                self._errors.raise_failed()  # says more than that the transaction has failed
                raise
        self._last = (batch.query, LastBatch(batch.number, batch.layout))

    def flush(self) -> None:
        """Wait until everything is stored."""
        with self._translate_errors("sending"):
            self._flush()

    def close(self) -> None:
        """Close the connections."""
        with suppress(KafkaException):
            self._producer.close()

    @contextmanager
    def aborted_on_error(self) -> Iterator[None]:
        """Abort the transaction when the block raises, so that no reader waits for it."""
        try:
            yield
        except BaseException:
            with suppress(KafkaException, BrokerError, SystemError):
                self._producer.purge()
                call_with_timeout(self._producer.abort_transaction, _ABORT)
            raise

    def _send(self, records: Sequence[OutRecord]) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for topic, key, value, partition, timestamp, headers in records:
            # 0 means now to the client; a millisecond after 1970 is nearer to the truth
            when = 0 if timestamp is None else timestamp or 1
            # the client accepts no tuple
            pairs: list[tuple[str, str | bytes | None]] | None = [*headers] if headers else None
            while True:
                try:
                    produce(topic, value, key, partition, timestamp=when, headers=pairs)
                    break
                except BufferError:
                    poll(0.05)
                    self._errors.raise_failed()
                except KafkaException as error:
                    # a record before this one may be why, and not yet reported; logs end a poll too
                    deadline = time.monotonic() + _REPORT
                    while not self._errors.failed and time.monotonic() < deadline:
                        poll(0.05)
                    self._errors.raise_failed()
                    raise translated(error, "sending", topic=topic) from error
        poll(0)

    def _flush(self) -> None:
        self._errors.flush(self._producer, self.spec.delivery_timeout + _ANSWER)

    @contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        try:
            with translate_errors(doing):
                yield
        except SystemError:
            # the client raises this for a fatal error that it gets while it is calling back
            if self._errors.fatal is not None:
                raise translated(self._errors.fatal, doing) from None
            self._errors.raise_failed()
            raise


# producers that can be reused, by transactional id
_idle: dict[str, SinkProducer] = {}


@contextmanager
def _reading(spec: SinkSpec) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            **spec.connection.client(),
            "group.id": spec.group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _markers(
    consumer: Consumer,
    spec: SinkSpec,
    tasks: Sequence[int],
    query: str,
    timeout: float | None = None,
) -> dict[int, LastBatch]:
    partitions = [TopicPartition(spec.marker_topic, task) for task in tasks]

    def committed() -> list[TopicPartition]:
        limit = _ANSWER if timeout is None else timeout
        found: list[TopicPartition] = consumer.committed(partitions, timeout=limit)
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return found

    with translate_errors("reading the last batch"):
        found = retry_transient(committed, spec.delivery_timeout if timeout is None else 0.0)
    last = {}
    for one in found:
        # a query that began anew, from an empty checkpoint, counts its batches from 0 again
        of, _, layout = (one.metadata or "").partition(" ")
        if one.offset > 0 and of == query:
            last[one.partition] = LastBatch(one.offset - 1, layout)
    return last
