"""Where an application's topics are: what Streams asks of an embedded log, or of Kafka."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args

from confluent_kafka import KafkaError as Code
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.records import LARGEST_RECORD
from thulawa.brokers.errors import BrokerError
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.errors import BrokerUnreachable, translated
from thulawa.brokers.kafka.groups import commit_offsets, committed, committed_offsets, delete_groups
from thulawa.brokers.kafka.reading import await_committed, read_to_end
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.topics import Topics as BrokerTopics
from thulawa.brokers.kafka.topics import TopicSpec
from thulawa.brokers.kafka.transactions import (
    Batch,
    Guarantee,
    SinkSpec,
    fence,
    last_batches,
    write,
)
from thulawa.core.errors import ConfigurationError
from thulawa.core.secrets import masked_address
from thulawa.core.types import Offsets
from thulawa.spark.connectors import kafka_packed, log_packed
from thulawa.spark.connectors.kafka_sink import connection_options, writer_of
from thulawa.spark.connectors.kafka_sink import register as register_kafka
from thulawa.spark.connectors.log_packed import ChunkFunction
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.micro_batch.inputs import ReadSpec, read_topics
from thulawa.spark.micro_batch.output_limits import EmbeddedOutlets, KafkaOutlets, Outlets
from thulawa.spark.micro_batch.wire import unpack_outgoing

__all__ = ["EmbeddedTopics", "KafkaTopics", "Topics", "topics_at"]

_log = logging.getLogger("thulawa.brokers.kafka")
_PATIENCE = 30  # seconds for one record
# a batch that is taken back needs the tombstones it has written, for as long as markers are kept
# inner topics take what the embedded log takes: a value may be larger there than in any output
_INNER = {"segment.bytes": str(50 * 2**20), "max.message.bytes": str(LARGEST_RECORD + 2**20)}
_COMPACTED = {"delete.retention.ms": str(7 * 86_400_000), **_INNER}
# as Kafka Streams has its repartition topics: no record goes before it has been read
_KEPT = {"retention.ms": "-1", "retention.bytes": "-1", **_INNER}
_OUTGOING = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)


class Commit(Protocol):
    """Commits offsets as those of an application, after a batch of its query."""

    def __call__(self, offsets: Offsets, query: str = "", batch: int = -1) -> None: ...


class Topics(Protocol):
    """The topics of an application."""

    @property
    def checkpoints(self) -> str:
        """The folder of the checkpoints of those who do not choose one."""

    def register(self, spark: SparkSession) -> None:
        """Make the formats known that are needed here; a session's copies know them then."""

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""

    def create(
        self, name: str, partitions: int, *, compact: bool = False, keep: bool = False
    ) -> None:
        """Make a topic, unless it is there; a compacted one must be there with these settings.

        With ``keep`` records stay until `delete_records` removes them, however old they are.
        """

    def delete(self, name: str) -> None:
        """Remove a topic with everything in it."""

    def delete_records(self, offsets: Offsets) -> None:
        """Remove the records before an offset of each partition."""

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Give what the front of a program makes of topics, so many records at a time.

        A query that has no checkpoint begins at ``starts``, elsewhere with the first record.
        """

    def records(self, name: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Give keys and values of a topic, each partition in offset order.

        Up to its end, or to where a transaction is open that an earlier life left: see `settle`.
        """

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write one record to partition 0 of a topic; it is there when this returns."""

    def settle(self, application: str, names: tuple[str, ...]) -> None:
        """End whatever an earlier life of the application left open in these topics."""

    def last_batches(self, application: str, query: str) -> dict[int, int]:
        """Return the last batch that each task of a query has written, of those that have."""

    def claim(self, application: str, query: str, batch: int, task: int) -> None:
        """Have a task's part of a batch count as written."""

    def write(self, rows: DataFrame, application: str) -> Any:
        """Give the writer of packed rows to topics; it only needs to be started."""

    def start_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets of the first records that are still there."""

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""

    def ids(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the ids of the topics that exist, where the broker has ids.

        A topic that is deleted and created again has another id.
        """

    @property
    def place(self) -> str:
        """Where the broker is: two applications of one name there are one application."""

    def committer(self, application: str) -> Commit:
        """Return a function that commits offsets as those of the application."""

    def committed(
        self, application: str, names: tuple[str, ...], query: str
    ) -> tuple[Offsets, int | None]:
        """Return the offsets that the application has committed, and after which batch of a query.

        None: nobody knows, or it was another query.
        """

    def last_written(self, application: str, query: str) -> int:
        """Return the last batch of a query that any task has written; -1: none.

        Tasks of an earlier life can write nothing more after that.
        """

    def trace(self, application: str) -> str | None:
        """Name what there is of an application beside its topics; None: nothing."""

    def forget(self, application: str) -> None:
        """Delete what there is of an application beside its topics: committed offsets, markers."""

    def tick(self, name: str) -> None:
        """Write an empty record to a topic: Spark runs no batch without one to begin with."""

    def outlets(self) -> Outlets:
        """Return what tells workers which topics there are and what they take."""


@dataclass(frozen=True, slots=True)
class EmbeddedTopics:
    """The embedded log as the place of an application's topics."""

    address: str

    @property
    def checkpoints(self) -> str:
        """The folder of the checkpoints, beside the topics that they are about."""
        return f"{self.address.removeprefix('file:')}/checkpoints"

    def register(self, spark: SparkSession) -> None:
        """Make the format known."""
        log_packed.register(spark)

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""
        with Log(self.address) as log:
            there = set(log.topics())
            return {name: len(log.end_offsets(name)) for name in names if name in there}

    def create(
        self,
        name: str,
        partitions: int,
        *,
        compact: bool = False,
        keep: bool = False,  # noqa: ARG002 so they do
    ) -> None:
        """Make a topic, unless it is there."""
        with Log(self.address) as log:
            if compact or name not in log.topics():
                log.create_topic(name, partitions=partitions, compact=compact)

    def delete(self, name: str) -> None:
        """Remove a topic with everything in it."""
        with Log(self.address) as log:
            log.delete_topic(name)

    def delete_records(self, offsets: Offsets) -> None:
        """Remove the records before an offset of each partition."""
        with Log(self.address) as log:
            for name, before in offsets.items():
                log.delete_records(name, before)

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Return what the front of a program makes of topics, where they are read."""
        reader = spark.readStream.format(log_packed.NAME)
        return read_topics(spark, reader, self.address, names, max_records, front, spec, starts)

    def write(self, rows: DataFrame, application: str) -> Any:  # noqa: ARG002 the query's id does
        """Give the writer of packed rows to topics."""
        return log_packed.packed_sink(rows, self.address)

    def start_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets of the first records that are still there."""
        with Log(self.address) as log:
            return {name: dict(log.start_offsets(name)) for name in names}

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""
        with Log(self.address) as log:
            return {name: dict(log.end_offsets(name)) for name in names}

    def tick(self, name: str) -> None:
        """Write an empty record to a topic."""
        with Log(self.address) as log:
            log.append({name: [ProducerRecord(None, None)]})

    def records(self, name: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Give keys and values of a topic up to its end."""
        with Log(self.address) as log:
            for partition, start in log.start_offsets(name).items():
                for record in log.read(name, partition, start):
                    yield record.key, record.value

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write one record to partition 0 of a topic."""
        with Log(self.address) as log:
            log.append({name: [ProducerRecord(key, value, partition=0)]})

    def settle(self, application: str, names: tuple[str, ...]) -> None:
        """Do nothing: what is not committed is not there."""

    def last_batches(self, application: str, query: str) -> dict[int, int]:  # noqa: ARG002
        """Return the last batch that each task of a query has written."""
        with Log(self.address) as log:
            return log.last_batches(query)

    def claim(self, application: str, query: str, batch: int, task: int) -> None:  # noqa: ARG002
        """Have a task's part of a batch count as written."""
        with Log(self.address) as log:
            log.append({}, marker=(query, task), batch=batch)

    def ids(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the ids of the topics that exist."""
        with Log(self.address) as log:
            there = set(log.topics())
            return {name: str(log.topic(name).id) for name in names if name in there}

    @property
    def place(self) -> str:
        """Where the log is."""
        return self.address

    def committer(self, application: str) -> Commit:
        """Return a function that commits offsets as those of the application's group."""

        def commit(offsets: Offsets, query: str = "", batch: int = -1) -> None:
            with Log(self.address) as log:
                for topic, positions in offsets.items():
                    with log.consumer(topic, group=application, partitions=positions) as group:
                        group.commit(positions)
                if query:  # last: offsets of several topics that are half written have no batch
                    log.append({}, marker=_commits_of(query), batch=batch)

        return commit

    def committed(
        self, application: str, names: tuple[str, ...], query: str
    ) -> tuple[Offsets, int | None]:
        """Return the offsets that the application has committed, and after which batch."""
        with Log(self.address) as log:
            found, batch = log.committed(application), log.last_batch(_commits_of(query))
        return {name: positions for name, positions in found.items() if name in names}, batch

    def last_written(self, application: str, query: str) -> int:  # noqa: ARG002 the query's id does
        """Return the last batch of a query that any task has written; -1: none."""
        with Log(self.address) as log:
            return max(log.last_batches(query).values(), default=-1)

    def trace(self, application: str) -> str | None:
        """Name the committed offsets of the application's group, where there are some."""
        with Log(self.address) as log:
            return _offsets_of(application) if log.committed(application) else None

    def forget(self, application: str) -> None:
        """Delete the committed offsets; markers are by query, and the next one has another id."""
        with Log(self.address) as log:
            log.forget_group(application)

    def outlets(self) -> Outlets:
        """Return what tells workers which topics there are and what they take."""
        return EmbeddedOutlets(self.address)


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """Kafka as the place of an application's topics."""

    connection: Connection
    guarantee: Guarantee = "exactly_once"
    policies: Policies = field(default_factory=Policies)
    transaction_timeout: float | None = None  # seconds; None: as the sink has it

    @property
    def checkpoints(self) -> str:
        """The folder of the checkpoints, where the program runs."""
        return "checkpoints"

    def register(self, spark: SparkSession) -> None:
        """Make the formats known."""
        register_kafka(spark)
        kafka_packed.register(spark)

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Give the number of partitions of the topics that exist."""
        found = BrokerTopics(self.connection).partitions(*names)
        return {name: count for name, count in found.items() if count is not None}

    def create(
        self, name: str, partitions: int, *, compact: bool = False, keep: bool = False
    ) -> None:
        """Make a topic, unless it is there."""
        if compact:
            spec = TopicSpec(partitions=partitions, cleanup="compact", settings=_COMPACTED)
            BrokerTopics(self.connection).ensure(name, spec)
        elif not self.partitions((name,)):
            spec = TopicSpec(partitions=partitions, settings=_KEPT if keep else {})
            BrokerTopics(self.connection).ensure(name, spec)

    def delete(self, name: str) -> None:
        """Remove a topic with everything in it."""
        BrokerTopics(self.connection).delete(name)

    def delete_records(self, offsets: Offsets) -> None:
        """Remove the records before an offset of each partition."""
        BrokerTopics(self.connection).delete_records(offsets)

    def read(
        self,
        spark: SparkSession,
        names: tuple[str, ...],
        max_records: int | None,
        front: ChunkFunction,
        spec: ReadSpec,
        *,
        starts: Offsets | None = None,
    ) -> DataFrame:
        """Return what the front of a program makes of topics, where they are read."""
        reader = spark.readStream.format(kafka_packed.NAME)
        reader = reader.options(**connection_options(self.connection))
        return read_topics(spark, reader, None, names, max_records, front, spec, starts)

    def write(self, rows: DataFrame, application: str) -> Any:
        """Give the writer of packed rows to topics."""
        rows = rows.mapInArrow(unpack_outgoing, _OUTGOING)
        # repartitions behind functions that are not known to be deterministic are topics
        layout = task_layout(rows, deterministic=True) if self.guarantee == "exactly_once" else ""
        return writer_of(rows, self.sink(application), None, layout)

    def start_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets of the first records that are still there."""
        return BrokerTopics(self.connection).start_offsets(*names)

    def end_offsets(self, names: tuple[str, ...]) -> dict[str, dict[int, int]]:
        """Give the offsets that the next records get."""
        return BrokerTopics(self.connection).end_offsets(*names)

    def tick(self, name: str) -> None:
        """Write an empty record to a topic."""
        self._produce(name)

    def records(self, name: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Give keys and values of a topic up to its end."""
        for chunk in read_to_end(self.connection, name, committed=True):
            for message in chunk:
                yield message.key(), message.value()

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write one record to partition 0 of a topic."""
        self._produce(name, key, value)

    def settle(self, application: str, names: tuple[str, ...]) -> None:
        """Fence the writers of an earlier life, and wait until all they wrote can be read."""
        fence(self.sink(application))
        await_committed(self.connection, *names)

    def last_batches(self, application: str, query: str) -> dict[int, int]:
        """Return the last batch that each task of a query has written."""
        return last_batches(self.sink(application), query)

    def claim(self, application: str, query: str, batch: int, task: int) -> None:
        """Have a task's part of a batch count as written."""
        write(self.sink(application), Batch(query, batch, task), [])

    def ids(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the ids of the topics that exist; brokers before Kafka 2.8 have none."""
        return BrokerTopics(self.connection).ids(*names)

    @property
    def place(self) -> str:
        """Where the brokers are."""
        return self.connection.bootstrap

    def committed(
        self, application: str, names: tuple[str, ...], query: str
    ) -> tuple[Offsets, int | None]:
        """Return the offsets that the application has committed, and after which batch."""
        found: Offsets = {}
        batches = set()
        for place in committed(self.connection, application):
            if place.topic in names:
                found.setdefault(place.topic, {})[place.partition] = place.offset
                of, _, batch = (place.metadata or "").rpartition("/")
                batches.add(int(batch) if of == query else None)
        return found, batches.pop() if len(batches) == 1 else None

    def last_written(self, application: str, query: str) -> int:
        """Return the last batch of a query that any task has written; fence those who could."""
        sink = self.sink(application)
        if self.guarantee != "exactly_once":
            return -1
        fence(sink)
        return max(last_batches(sink, query).values(), default=-1)

    def trace(self, application: str) -> str | None:
        """Name the committed offsets of the application's groups, where there are some."""
        for group in (application, self.sink(application).group):
            if committed_offsets(self.connection, group):
                return _offsets_of(group)
        return None

    def forget(self, application: str) -> None:
        """Delete the groups of the application: its committed offsets, and the sink's markers."""
        sink = self.sink(application)
        delete_groups(self.connection, application, sink.group)
        if self.partitions((sink.marker_topic,)):
            self.delete(sink.marker_topic)

    def committer(self, application: str) -> Commit:
        """Commit offsets as those of the group of the application's name, for ordinary tools.

        A commit that fails is logged and not tried again: the next one is newer.
        """
        client = AdminClient(self.connection.client())

        def commit(offsets: Offsets, query: str = "", batch: int = -1) -> None:
            stamp = f"{query}/{batch}"
            try:
                commit_offsets(self.connection, application, offsets, client=client, metadata=stamp)
            except BrokerError as error:
                _log.warning("the offsets of group %s are out of date: %s", application, error)

        return commit

    def outlets(self) -> Outlets:
        """Return what tells workers which topics there are and what they take.

        What the sink's policies answer is left to them.
        """
        return KafkaOutlets(
            self.connection,
            may_be_missing=self.policies.missing != "fail",
            may_be_oversized=self.policies.oversized != "fail",
        )

    def sink(self, application: str) -> SinkSpec:
        """Give the sink that an application writes with."""
        spec = SinkSpec(
            connection=self.connection,
            application=application,
            guarantee=self.guarantee,
            policies=self.policies,
        )
        if (longest := self.transaction_timeout) is None:
            return spec
        delivery = min(spec.delivery_timeout, longest)
        return replace(spec, transaction_timeout=longest, delivery_timeout=delivery)

    def _produce(self, name: str, key: bytes | None = None, value: bytes | None = None) -> None:
        refused: list[Code] = []
        producer = Producer(self.connection.client())
        producer.produce(
            name, value, key, 0, lambda error, _: refused.append(error) if error else None
        )
        if producer.flush(_PATIENCE):
            raise BrokerUnreachable(f"{self.connection.bootstrap} took no record of {name}")
        for error in refused:
            raise translated(error, "writing a record", topic=name)


def _commits_of(query: str) -> tuple[str, int]:
    """Return the marker that says after which batch of a query offsets were committed."""
    return f"{query}/committed", 0


def _offsets_of(group: str) -> str:
    return f"committed offsets of the group {group!r}"


def topics_at(
    address: str | Connection,
    guarantee: Guarantee = "exactly_once",
    policies: Policies | None = None,
    transaction_timeout: float | None = None,
) -> Topics:
    """Give the topics at an address: ``file:./topics``, ``kafka://host:9092``, a `Connection`."""
    if guarantee not in get_args(Guarantee):
        known = ", ".join(get_args(Guarantee))
        raise ConfigurationError(f"processing_guarantee is one of {known}, not {guarantee!r}")
    if isinstance(address, Connection) or address.startswith("kafka://"):
        if transaction_timeout is not None and (
            guarantee != "exactly_once" or transaction_timeout < 1
        ):
            raise ConfigurationError(
                "transaction_timeout is at least 1 s, and for exactly_once: without transactions "
                "leave it out"
            )
        return KafkaTopics(
            Connection.of(address), guarantee, policies or Policies(), transaction_timeout
        )
    if address.startswith("file:"):
        if guarantee != "exactly_once" or policies is not None or transaction_timeout is not None:
            raise ConfigurationError(
                "an embedded log is written exactly once at no extra cost, and has no policies; "
                "leave processing_guarantee, policies and transaction_timeout out"
            )
        with Log(address) as log:  # workers may stand in another folder
            return EmbeddedTopics(log.address)
    raise ConfigurationError(
        f"log={masked_address(address)!r} is not known; use file:PATH for an embedded log, or kafka://HOST:PORT"
    )
