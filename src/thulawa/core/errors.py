"""Every error that the library raises or handles, in one tree.

::

    ThulawaError
    ├── ConfigurationError (ValueError)   an option or a combination of options cannot work
    │   └── TopologyError                 nodes that do not fit together; names the user's line
    ├── Retriable                         raised by user functions: retry this record
    ├── Terminal                          raised by user functions: do not retry
    ├── Overload                          raised by user functions: the service has no capacity
    ├── QueryFailed                       a streaming query ended; the cause is Spark's own error
    ├── StateError                        state that is damaged or belongs to another program
    └── RecordError                       one record could not be processed; says which and why
        ├── BadKey (TypeError)            its key cannot be hashed or does not equal itself
        ├── BadLane (ValueError)          its lane is not one of the engine's
        ├── AttemptTimedOut (TimeoutError)
        ├── DeadlineExceeded (TimeoutError)
        ├── SelfCancelled                 the function raised CancelledError by itself
        ├── WrongResult (TypeError)       the function returned a value of the wrong kind
        ├── Quarantined                   its key has failed too often to be called now
        ├── UnknownBucket (ValueError)    its key names no bucket (thulawa.priority.buckets)
        └── StreamError                   in a topology; has topic and partition
            ├── SerializationError (ValueError)   bytes or a value that a serde does not accept
            ├── TimestampError (ValueError)       a time that is negative or too far ahead
            ├── ProcessingError                   a function of the topology raised
            └── ProductionError                   an output could not be sent

User functions raise the three to classify a failure; the retry options classify any other
exception.
"""

from collections.abc import Hashable

__all__ = [
    "AttemptTimedOut",
    "BadKey",
    "BadLane",
    "ConfigurationError",
    "DeadlineExceeded",
    "Overload",
    "ProcessingError",
    "ProductionError",
    "Quarantined",
    "QueryFailed",
    "RecordError",
    "Retriable",
    "SelfCancelled",
    "SerializationError",
    "StateError",
    "StreamError",
    "Terminal",
    "ThulawaError",
    "TimestampError",
    "TopologyError",
    "WrongResult",
    "message_of",
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
