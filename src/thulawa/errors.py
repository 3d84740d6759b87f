"""Every error that the library raises or handles, in one tree.

::

    ThulawaError
    ├── ConfigurationError (ValueError)   an option or a combination of options cannot work
    │   └── TopologyError                 nodes that do not fit together; names the user's line
    ├── Retriable                         raised by user functions: retry this record
    ├── Terminal                          raised by user functions: do not retry
    ├── Overload                          raised by user functions: the service has no capacity
    ├── QueryFailed                       a streaming query ended; the cause is Spark's own error
    ├── IncompleteInput                   Spark ended a task before its input was complete
    ├── InfluxUnreachable                 points could not be written in time
    ├── StateError                        state that is damaged or belongs to another program
    │   ├── StateLoss                     a start would lose state, without permission to
    │   └── OlderBatch                    a marker is of a later micro-batch than the one to write
    ├── RecordError                       one record could not be processed; says which and why
    │   ├── BadKey (TypeError)            its key cannot be hashed or does not equal itself
    │   ├── BadLane (ValueError)          its lane is not one of the engine's
    │   ├── AttemptTimedOut (TimeoutError)
    │   ├── DeadlineExceeded (TimeoutError)
    │   ├── SelfCancelled                 the function raised CancelledError by itself
    │   ├── WrongResult (TypeError)       the function returned a value of the wrong kind
    │   ├── Quarantined                   its key has failed too often to be called now
    │   ├── UnknownBucket (ValueError)    its key names no bucket
    │   └── StreamError                   in a topology; has topic and partition
    │       ├── SerializationError (ValueError)   bytes or a value that a serde does not accept
    │       ├── TimestampError (ValueError)       a time that is negative or too far ahead
    │       ├── ProcessingError                   a function of the topology raised
    │       └── ProductionError                   an output could not be sent
    └── BrokerError                       a broker could not do what it was asked
        ├── UnknownTopic (LookupError)      no such topic or partition; it may have been deleted
        ├── TopicDiffers                    the topic exists with other settings
        ├── RecordTooLarge (ValueError)     larger than the topic accepts
        ├── OffsetOutOfRange (LookupError)  removed by retention, or not yet written
        ├── Fenced                          a later transaction of the same writer has begun
        ├── TransactionOpen (TimeoutError)  a transaction stays open: its records cannot be read
        ├── LogError                        of the embedded log alone
        │   ├── InvalidRecord (ValueError)  rejected before anything is written
        │   ├── LogBusy (TimeoutError)      another process held the log for too long
        │   ├── LogFailed (OSError)         the file system failed: full, read-only, unreachable
        │   ├── ForeignLog                  the file is not a log, or of a newer version
        │   └── DamagedLog                  the file's content is not what was written
        └── KafkaError                      of Kafka alone
            ├── BrokerUnreachable (TimeoutError)        no answer from that address in time
            ├── AuthenticationFailed (PermissionError)  wrong password, or one is required
            ├── BrokerFailed                            an error answer, or no start of a local one
            └── ToolMissing (FileNotFoundError)         java or mvn is not installed

User functions raise `Retriable`, `Terminal` and `Overload` to classify a failure; the retry options
classify any other exception. Names and options that cannot work raise `ConfigurationError`
everywhere. No message holds a secret: settings are never put into one.
"""

from collections.abc import Hashable
from typing import Any

__all__ = [
    "AttemptTimedOut",
    "AuthenticationFailed",
    "BadKey",
    "BadLane",
    "BrokerError",
    "BrokerFailed",
    "BrokerUnreachable",
    "ConfigurationError",
    "DamagedLog",
    "DeadlineExceeded",
    "Fenced",
    "ForeignLog",
    "IncompleteInput",
    "InfluxUnreachable",
    "InvalidRecord",
    "KafkaError",
    "LogBusy",
    "LogError",
    "LogFailed",
    "OffsetOutOfRange",
    "OlderBatch",
    "Overload",
    "ProcessingError",
    "ProductionError",
    "Quarantined",
    "QueryFailed",
    "RecordError",
    "RecordTooLarge",
    "Retriable",
    "SelfCancelled",
    "SerializationError",
    "StateError",
    "StateLoss",
    "StreamError",
    "Terminal",
    "ThulawaError",
    "TimestampError",
    "ToolMissing",
    "TopicDiffers",
    "TopologyError",
    "TransactionOpen",
    "UnknownBucket",
    "UnknownTopic",
    "WrongResult",
]


def message_of(error: BaseException) -> str:
    r"""Return an error's message as text that can be written anywhere.

    The message of a user's exception may hold what UTF-8 cannot (a lone surrogate of a JSON text),
    and its ``__str__`` may itself raise: no record may stop an application by that.

    >>> print(message_of(ValueError("no place \ud800")))
    no place \ud800
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 the user's class may raise anything
        text = f"{type(error).__qualname__}: its message cannot be read"
    return text.encode(errors="backslashreplace").decode()


class ThulawaError(Exception):
    """The base class of all errors."""


class ConfigurationError(ThulawaError, ValueError):
    """An option, or a combination of options, that cannot work."""


class TopologyError(ConfigurationError):
    """Nodes, stores or names of a topology that do not fit together.

    ``where`` is the line of the user's program that asked for it, when that is known.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(message if where is None else f"{message} (at {where})")
        self.where = where


class Retriable(ThulawaError):
    """Raise it in a function to have the record retried, by the retry options.

    With ``retry_after`` (seconds) the record is not retried earlier; its key waits with it, other
    keys continue.
    """

    def __init__(self, message: str = "try again", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else float(retry_after)


class Terminal(ThulawaError):
    """Raise it in a function when a retry is of no use: the error policy applies at once."""


class Overload(ThulawaError):
    """Raise it when the service accepts no call at all (HTTP 429 or 503 for all of them).

    The record is retried, which does not count as one of its failures, and the adaptive limit is
    lowered. With ``retry_after`` (seconds) no call of the task starts earlier; to have only one
    record wait, raise ``Retriable(retry_after=...)``.
    """

    def __init__(self, message: str = "overloaded", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else float(retry_after)


class QueryFailed(ThulawaError):
    """A streaming query has ended with an error; the message is that of its cause.

    Its ``__cause__`` is Spark's own error, with all stack traces.
    """


class StateError(ThulawaError):
    """State that cannot be used: damaged, of another version, or of another program."""


class StateLoss(StateError):
    """State that a start would lose without permission to (``allow_state_loss``)."""


class RecordError(ThulawaError):
    """One record could not be processed; has its node, offset and key, and what to do.

    ``offset`` counts in ``source``, a topic-partition; without one, in the input of the run.
    ``record`` is the record itself, for error handlers; no message shows it.
    """

    action = "see the cause, then choose a retry or an error policy that fits it"

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        offset: int | None = None,
        key: Hashable = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(message)
        self.node = node
        self.offset = offset
        self.key = key
        self.attempts = attempts
        self.source: str | None = None
        self.record: object = None

    def __str__(self) -> str:
        tried = f", after {self.attempts} attempts" if self.attempts > 1 else ""
        of = "" if self.source is None else f" of {self.source}"
        where = "" if self.offset is None else f" (record at offset {self.offset}{of}{tried})"
        name = "" if self.node is None else f"{self.node}: "
        return f"{name}{super().__str__()}{where}; {self.action}"


class BadKey(RecordError, TypeError):
    """A key that cannot be hashed, or that does not equal itself (NaN)."""

    action = "use a key of str, bytes, int or a tuple of these"


class BadLane(RecordError, ValueError):
    """A lane that is not one of the engine's."""

    action = "set WorkItem.lane to an index into the lanes of the engine's options"


class AttemptTimedOut(RecordError, TimeoutError):
    """One call took longer than ``timeout``."""

    action = "raise timeout, lower in_flight, or look at the service that was called"


class DeadlineExceeded(RecordError, TimeoutError):
    """All attempts together took longer than ``deadline``."""

    action = "raise deadline, or look at the service that was called"


class SelfCancelled(RecordError):
    """The function raised CancelledError although it was not cancelled."""

    action = "catch the cancellation inside the function, or raise an error that says what happened"


class WrongResult(RecordError, TypeError):
    """The function returned a value of the wrong kind."""

    action = "correct the function's return value"


class Quarantined(RecordError):
    """The record's key failed too often, and the function is not called for it for a while."""

    action = "replay the dead letters of this key once the cause is fixed"


class StreamError(RecordError):
    """One record of a topology could not be processed; has its topic, partition and node."""

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, node=node, offset=offset)
        self.topic = topic
        self.partition = partition

    def __str__(self) -> str:
        name = "" if self.node is None else f"{self.node}: "
        where = ""
        if self.topic is not None:
            place = "" if self.partition is None else f"-{self.partition} at {self.offset}"
            where = f" ({self.topic}{place})"
        return f"{name}{self.args[0]}{where}; {self.action}"


class SerializationError(StreamError, ValueError):
    """Bytes that cannot be read, or a value that cannot be written."""

    action = "choose the serde the data was written with, or a handler that skips or sets aside"


class TimestampError(StreamError, ValueError):
    """A timestamp that is negative, or further ahead of the clock than allowed."""

    action = "choose a timestamp extractor, or a timestamp policy that skips or uses partition time"


class ProcessingError(StreamError):
    """A function of the topology raised; its error is the cause."""

    action = "see the cause, or choose a processing handler that skips or sets aside"


class ProductionError(StreamError):
    """An output could not be sent."""

    action = "see the cause, or choose a production handler that sets it aside"


class UnknownBucket(RecordError, ValueError):
    """A key whose bucket does not exist."""

    action = "name its bucket, or choose default=, unknown='drop' or unknown='spread'"


class OlderBatch(StateError):
    """The marker is of a later micro-batch than the one to be written."""


class InfluxUnreachable(ThulawaError):
    """The points could not be written within the time given."""


class IncompleteInput(ThulawaError):
    """Spark abandoned a task before its last row; its rows must not be committed."""


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
        self, message: str, *, start: int | None = None, end: int | None = None, **where: Any
    ) -> None:
        super().__init__(message, **where)
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


class LogError(BrokerError):
    """The embedded log could not do what it was asked."""

    action = "see the cause"


class InvalidRecord(LogError, ValueError):
    """A record that a log cannot hold. Nothing of its batch was written."""

    action = "correct the record, or send it to a dead-letter topic"


class LogBusy(LogError, TimeoutError):
    """Another process held the write lock for longer than ``timeout``."""

    action = "try again; look for a writer that is stopped in a debugger, or raise timeout"


class LogFailed(LogError, OSError):
    """The file system failed: full, read-only, out of reach. Nothing was written."""

    action = "repair the file system, then try again: what was confirmed before is intact"


class ForeignLog(LogError):
    """The file is not a Thulawa log, or one that a newer version wrote."""

    action = "point the address at another folder, or upgrade thulawa; the file is left as it is"


class DamagedLog(LogError):
    """The log holds something that was never written to it."""

    action = (
        "restore the folder from a copy, or move it away and start a new one; "
        "`sqlite3 log.sqlite .recover` saves what can be saved"
    )


class KafkaError(BrokerError):
    """Kafka could not do what it was asked."""


class BrokerUnreachable(KafkaError, TimeoutError):
    """No broker answered in time."""

    action = "start the broker (thulawa kafka up), or correct the address"


class AuthenticationFailed(KafkaError, PermissionError):
    """The broker rejects the credentials, or denies this operation."""

    action = "correct security.protocol, sasl.mechanism, the name or the password; see the ACLs"


class BrokerFailed(KafkaError):
    """The broker answered with an error, or the local one did not start."""


class ToolMissing(KafkaError, FileNotFoundError):
    """A program that is needed is not installed."""

    action = "install it, or set THULAWA_KAFKA to a broker that runs already"
