"""Errors that every broker raises alike.

::

    ThulawaError
    └── BrokerError
        ├── UnknownTopic (LookupError)      no such topic or partition; it may have been deleted
        ├── TopicDiffers                    the topic exists with other settings
        ├── RecordTooLarge (ValueError)     larger than the topic accepts
        ├── OffsetOutOfRange (LookupError)  removed by retention, or not yet written
        ├── Fenced                          a later transaction of the same writer has begun
        ├── TransactionOpen (TimeoutError)  a transaction stays open: its records cannot be read
        ├── LogError                        of the embedded log alone: `brokers.embedded.errors`
        └── KafkaError                      of Kafka alone: `brokers.kafka.errors`

Names and options that cannot work raise `ConfigurationError`, as everywhere.
"""

from thulawa.core.errors import ThulawaError

__all__ = [
    "BrokerError",
    "Fenced",
    "OffsetOutOfRange",
    "RecordTooLarge",
    "TopicDiffers",
    "TransactionOpen",
    "UnknownTopic",
]


class BrokerError(ThulawaError):
    """A broker could not do what it was asked: where, and what to do about it."""

    action = ""

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __str__(self) -> str:
        names = ("topic", self.topic), ("partition", self.partition), ("offset", self.offset)
        where = ", ".join(f"{name} {value}" for name, value in names if value is not None)
        action = f"; {self.action}" if self.action else ""
        return f"{super().__str__()}{f' ({where})' if where else ''}{action}"


class UnknownTopic(BrokerError, LookupError):
    """There is no such topic, or the topic has no such partition."""

    action = "create the topic, or correct its name; if it was deleted, its records are gone"


class TopicDiffers(BrokerError):
    """The topic exists, with other settings than those asked for."""

    action = "ask for the settings it has, or delete it if nobody needs its records"


class RecordTooLarge(BrokerError, ValueError):
    """A record is larger than its topic accepts. Nothing of its batch is written."""

    action = (
        "send less, or raise max.message.bytes of a topic of Kafka; a Kafka sink can also be given "
        'oversized="dead_letter"'
    )


class OffsetOutOfRange(BrokerError, LookupError):
    """The offset does not exist: removed by retention, or not yet written.

    ``start`` and ``end`` are the bounds of the partition, where they are known: the records in
    [start, end) exist.
    """

    action = (
        "read from an offset that exists, raise the topic's retention, or start again from a new "
        "checkpoint"
    )

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(message, topic=topic, partition=partition, offset=offset)
        self.start = start
        self.end = end


class Fenced(BrokerError):
    """A later transaction of the same writer has begun. Nothing of this one can be read."""

    action = (
        "nothing to do when a task was run again; otherwise check that no other query has this "
        "application and sink, and that transaction_timeout is longer than a batch takes"
    )


class TransactionOpen(BrokerError, TimeoutError):
    """A transaction stays open, so that the records behind its first one cannot be read."""

    action = "stop the application that writes these topics, or wait for its transaction timeout"
