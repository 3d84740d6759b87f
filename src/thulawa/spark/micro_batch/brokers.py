"""The broker of an application: topics, committed offsets, markers, and its Spark formats."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import get_args

from thulawa.brokers.embedded.embedded_broker import EmbeddedBroker
from thulawa.brokers.kafka.broker import KafkaBroker
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.transactions import Guarantee
from thulawa.brokers.port import (
    Broker,
    Committed,
    WriterId,
    await_committed,
    open_broker,
    read_to_end,
)
from thulawa.core.markers import LastBatch
from thulawa.core.types import Offsets, ProducerRecord
from thulawa.errors import BrokerError, ConfigurationError
from thulawa.spark.micro_batch.broker_formats import BrokerFormats, EmbeddedFormats, KafkaFormats

__all__ = ["StreamsBroker", "streams_broker"]

_log = logging.getLogger("thulawa.brokers.kafka")


@dataclass(frozen=True, slots=True)
class StreamsBroker:
    """A broker as `Streams` uses it: the port, and the formats that read and write it on Spark."""

    broker: Broker
    formats: BrokerFormats

    @property
    def place(self) -> str:
        """The broker's address: there, two applications of one name are one application."""
        return self.broker.address.removeprefix("kafka://")

    def partitions(self, names: tuple[str, ...]) -> dict[str, int]:
        """Return the number of partitions of the topics that exist."""
        return self.broker.partitions(*names)

    def create(
        self, name: str, partitions: int, *, compact: bool = False, keep: bool = False
    ) -> None:
        """Create a topic unless it exists; a compacted one must exist with these settings.

        With ``keep`` records stay until `delete_records` removes them, however old they are.
        """
        if compact or name not in self.broker.partitions(name):
            self.broker.create_topic(name, partitions, compact=compact, unlimited=keep)

    def delete(self, name: str) -> None:
        """Delete a topic with its records."""
        self.broker.delete_topic(name)

    def delete_records(self, offsets: Offsets) -> None:
        """Delete the records before an offset of each partition."""
        self.broker.delete_records(offsets)

    def start_offsets(self, names: tuple[str, ...]) -> Offsets:
        """Return the offsets of the first records that still exist."""
        return self.broker.start_offsets(*names)

    def end_offsets(self, names: tuple[str, ...]) -> Offsets:
        """Return the offsets behind the last committed records."""
        return self.broker.end_offsets(*names)

    def ids(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the ids of the topics that exist, where the broker has ids."""
        return self.broker.topic_ids(*names)

    def records(self, name: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield keys and values of a topic, each partition in offset order.

        Up to its end, or to a transaction that an earlier run left open: see `settle`.
        """
        for record in read_to_end(self.broker, name):
            yield record.key, record.value

    def put(self, name: str, key: bytes | None, value: bytes | None) -> None:
        """Write one record to partition 0 of a topic; it is stored when this returns."""
        self.broker.append(name, [ProducerRecord(key, value, partition=0)])

    def tick(self, name: str) -> None:
        """Write an empty record to a topic: Spark runs no micro-batch without an input."""
        self.put(name, None, None)

    def settle(self, application: str, names: tuple[str, ...]) -> None:
        """Abort transactions that earlier runs left open, and wait until topics can be read."""
        self.broker.fence(_writer(application))
        await_committed(self.broker, *names)

    def last_batches(self, application: str, query: str) -> dict[int, int]:
        """Return the last batch that each task of a query has written, of those that have."""
        markers = self.broker.markers(_writer(application, query))
        return {task: last.number for task, last in markers.items()}

    def claim(self, application: str, query: str, batch: int, task: int) -> None:
        """Commit the marker of a task's part of a batch, without records."""
        with self.broker.transaction(_writer(application, query), task, LastBatch(batch)):
            pass

    def last_written(self, application: str, query: str) -> int:
        """Return the last batch of a query that any task has written, or -1.

        Tasks of earlier runs are fenced: they write nothing more.
        """
        if self.formats.guarantee != "exactly_once":
            return -1
        self.broker.fence(_writer(application, query))
        return max(self.last_batches(application, query).values(), default=-1)

    def committer(self, application: str) -> Callable[..., None]:
        """Return a function that commits offsets as those of the application's consumer group.

        It is called with offsets, the query and the batch. A commit that fails is logged and not
        repeated: the next one is newer.
        """
        return partial(self._commit, application)

    def _commit(self, application: str, offsets: Offsets, query: str = "", batch: int = -1) -> None:
        try:
            self.broker.commit(application, offsets, query=query, batch=batch)
        except BrokerError as error:
            _log.warning("the offsets of group %s are out of date: %s", application, error)

    def committed(self, application: str, names: tuple[str, ...], query: str) -> Committed:
        """Return the offsets that the application has committed, and after which batch."""
        return self.broker.committed(application, names, query=query)

    def trace(self, application: str) -> str | None:
        """Describe what exists of an application beside its topics; None: nothing."""
        for group in (application, _writer(application).group):
            if self.broker.committed(group).offsets:
                return f"committed offsets of the group {group!r}"
        return None

    def forget(self, application: str) -> None:
        """Delete the committed offsets and the markers of an application."""
        self.broker.delete_groups(application)
        self.broker.delete_writer(_writer(application))


def _writer(application: str, query: str = "") -> WriterId:
    return WriterId(application=application, query=query)


def streams_broker(
    address: str | Connection,
    guarantee: Guarantee = "exactly_once",
    policies: Policies | None = None,
    transaction_timeout: float | None = None,
) -> StreamsBroker:
    """Return the broker at ``file:./topics``, ``kafka://host:9092``, or of a `Connection`."""
    if guarantee not in get_args(Guarantee):
        known = ", ".join(get_args(Guarantee))
        raise ConfigurationError(f"processing_guarantee is one of {known}, not {guarantee!r}")
    broker = open_broker(address)
    if isinstance(broker, KafkaBroker):
        if transaction_timeout is not None and (
            guarantee != "exactly_once" or transaction_timeout < 1
        ):
            raise ConfigurationError(
                "transaction_timeout is at least 1 s, and for exactly_once: without transactions "
                "leave it out"
            )
        formats = KafkaFormats(
            broker.connection, guarantee, policies or Policies(), transaction_timeout
        )
        return StreamsBroker(broker, formats)
    assert isinstance(broker, EmbeddedBroker)
    if guarantee != "exactly_once" or policies is not None or transaction_timeout is not None:
        raise ConfigurationError(
            "an embedded log is written exactly once at no extra cost, and has no policies; "
            "leave processing_guarantee, policies and transaction_timeout out"
        )
    return StreamsBroker(broker, EmbeddedFormats(broker.address))
