"""Every error the library raises or understands, in one tree.

::

    ThulawaError
    ├── ConfigurationError (ValueError)   an option or a combination is refused when it is made
    │   └── TopologyError                 nodes that do not fit together; names the user's line
    ├── Retriable                         raised by user functions: try this record again
    ├── Terminal                          raised by user functions: trying again is of no use
    ├── Overload                          raised by user functions: the other side is full
    ├── QueryFailed                       a streaming query ended; the cause is Spark's own error
    ├── StateError                        kept state that is damaged, foreign or of another program
    └── RecordError                       one record could not be processed; says which and why
        ├── BadKey (TypeError)            its key cannot be hashed or does not equal itself
        ├── BadLane (ValueError)          its lane is not one of the engine's
        ├── AttemptTimedOut (TimeoutError)
        ├── DeadlineExceeded (TimeoutError)
        ├── SelfCancelled                 the function raised CancelledError of its own
        ├── WrongResult (TypeError)       the function returned what it must not return
        ├── Quarantined                   its key has failed too often to be tried now
        ├── UnknownBucket (ValueError)    its key names no bucket (thulawa.priority.buckets)
        └── StreamError                   of a topology; says topic and partition too
            ├── SerializationError (ValueError)   bytes or values that a serde cannot take
            ├── TimestampError (ValueError)       a time that is negative or too far ahead
            ├── ProcessingError                   a function of the topology raised
            └── ProductionError                   an output could not be sent

The three that user functions raise are how a function tells the engine which class its
failure belongs to; any other exception is classed by the retry options.
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
    """The root of the tree."""


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
    """Raise it in a function to have the record tried again, by the retry options.

    With ``retry_after`` (seconds) the record is not tried again before; its key waits with it,
    other keys go on.
    """

    def __init__(self, message: str = "try again", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else float(retry_after)


class Terminal(ThulawaError):
    """Raise it in a function when trying again is of no use: the error policy answers."""


class Overload(ThulawaError):
    """Raise it when the other side has no room for any call (HTTP 429 or 503 for all of them).

    The record is tried again, this does not count as one of its failures, and the adaptive
    limit gives way. With ``retry_after`` (seconds) no call of the task starts before it is over;
    where only one record is to wait, raise ``Retriable(retry_after=...)``.
    """

    def __init__(self, message: str = "overloaded", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else float(retry_after)


class QueryFailed(ThulawaError):
    """A streaming query has ended with an error: the words of what caused it.

    Its ``__cause__`` is Spark's own error, with all traces.
    """


class StateError(ThulawaError):
    """State that cannot be used: damaged, of another version, or of another program."""


class StateLoss(StateError):
    """State that a start would lose, and was not allowed to (``allow_state_loss``)."""


class RecordError(ThulawaError):
    """One record could not be processed. Carries where it is and what to do about it.

    ``offset`` counts in ``source``, a topic-partition; where that is None, in the input of the run.
    ``record`` is what was to be processed, for whoever handles the error; it is in no message.
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
    """A key that cannot be hashed, or that does not equal itself (NaN): it has no order."""

    action = "use a key of str, bytes, int or a tuple of these"


class BadLane(RecordError, ValueError):
    """A lane that the engine does not have."""

    action = "set Record.lane to an index into the lanes of the engine's options"


class AttemptTimedOut(RecordError, TimeoutError):
    """One call took longer than ``timeout``."""

    action = "raise timeout, lower in_flight, or look at the service that was called"


class DeadlineExceeded(RecordError, TimeoutError):
    """All attempts together took longer than ``deadline``."""

    action = "raise deadline, or look at the service that was called"


class SelfCancelled(RecordError):
    """The function raised CancelledError although nobody had cancelled it."""

    action = "catch the cancellation inside the function, or raise an error that says what happened"


class WrongResult(RecordError, TypeError):
    """The function returned something it must not return."""

    action = "mend the function's return value"


class Quarantined(RecordError):
    """The record's key failed too often and is not called for a while."""

    action = "replay the dead letters of this key once its cause is mended"


class StreamError(RecordError):
    """One record of a topology could not be processed. Says which one, and in which node."""

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
