"""What happens to a record that cannot be read, processed or sent: the error handlers.

A handler is a function of the error and of the record as it was; it answers `Fail` (the
default), `Resume`, or, for outputs, `Retry`. Dead letters leave with the answer and are sent
like any output: if that fails, the task fails, and nothing is lost. Values are never logged.
"""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from thulawa.core.errors import ConfigurationError, StreamError, message_of
from thulawa.core.names import check_name
from thulawa.core.records import LAST_OUTPUT_TIMESTAMP, Headers
from thulawa.core.serdes import WithoutData

__all__ = [
    "DeadLetter",
    "DeadLetterQueue",
    "ErrorRecord",
    "Fail",
    "Handler",
    "Handlers",
    "Output",
    "Response",
    "Resume",
    "Retry",
    "log_and_continue",
    "log_and_fail",
]

_log = logging.getLogger("thulawa.streams")


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The record an error is about, as it came from its topic.

    Of an output that cannot be sent, ``output`` is what was to be sent, and where; the rest is the
    record it comes of. Where that is not known any more (it had waited in a cache or a window, or
    a punctuation sent the output) key and value are those of the output, and ``topic`` is None.
    """

    node: str | None
    topic: str | None
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers
    output: "Output | None" = None


@dataclass(frozen=True, slots=True)
class Output:
    """A record that was to be sent to a topic: key and value before they are serialized."""

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for people to look at.

    Its timestamp is the nearest that a topic takes: that of the record may be why it failed.
    """

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers

    def __post_init__(self) -> None:
        nearest = min(max(self.timestamp, 0), LAST_OUTPUT_TIMESTAMP)
        object.__setattr__(self, "timestamp", nearest)


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the task; the record is read again after a restart."""

    dead_letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """Leave the record out and go on."""

    dead_letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the output again; counts as a failure after ``attempts``."""

    attempts: int = 3


Response: TypeAlias = Fail | Resume | Retry
Handler: TypeAlias = Callable[[StreamError, ErrorRecord], Response]


def log_and_fail(error: StreamError, record: ErrorRecord) -> Response:
    """Log where the record is, and fail."""
    _log.error("%s: %s", type(error).__name__, _place(record))
    return Fail()


def log_and_continue(error: StreamError, record: ErrorRecord) -> Response:
    """Log where the record is, and leave it out."""
    _log.warning("skipped, %s: %s", type(error).__name__, _place(record))
    return Resume()


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """Send the record to a topic, with headers that tell what happened, and go on.

    >>> handler = DeadLetterQueue("orders-dead")
    >>> error = StreamError("no such customer", topic="orders", partition=0, offset=7)
    >>> answer = handler(error, ErrorRecord("MAP", "orders", 0, 7, b"k", b"v", 5, ()))
    >>> [letter.topic for letter in answer.dead_letters]
    ['orders-dead']
    >>> dict(answer.dead_letters[0].headers)["__streams.errors.offset"]
    b'7'
    """

    topic: str

    def __post_init__(self) -> None:
        check_name(self.topic, "topic")

    def __call__(self, error: StreamError, record: ErrorRecord) -> Response:
        """Answer with the dead letter."""
        return Resume((self.letter(error, record),))

    def letter(self, error: StreamError, record: ErrorRecord) -> DeadLetter:
        """Make the dead letter."""
        headers = (*record.headers, *_error_headers(error, record))
        return DeadLetter(self.topic, record.key, record.value, record.timestamp, headers)


def _error_headers(error: StreamError, record: ErrorRecord) -> Headers:
    exception, message, stacktrace = _described(error)
    texts = {
        "exception": exception,
        "message": message,
        "stacktrace": stacktrace,
        "node": record.node or "",
        "topic": record.topic or "",
        "partition": str(record.partition),
        "offset": str(record.offset),
    }
    return tuple(
        (f"__streams.errors.{name}", text.encode(errors="backslashreplace"))
        for name, text in texts.items()
    )


def _described(error: StreamError) -> tuple[str, str, str]:
    """Return class, message and stack trace of what was raised first: by the user's function."""
    summary = str(error.args[0]) if error.args else ""
    cause = error.__cause__
    if isinstance(cause, WithoutData):
        return str(cause), summary, "".join(traceback.format_tb(error.__traceback__))
    raised = cause or error
    own = summary if cause is None else message_of(cause) or summary
    return type(raised).__qualname__, own, "".join(traceback.format_exception(raised))


def _place(record: ErrorRecord) -> str:
    return f"{record.topic}-{record.partition} at {record.offset}, node {record.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handlers of a program; each fails unless told otherwise."""

    deserialization: Handler = field(default=log_and_fail)
    processing: Handler = field(default=log_and_fail)
    production: Handler = field(default=log_and_fail)

    def __post_init__(self) -> None:
        for name in ("deserialization", "processing", "production"):
            if not callable(getattr(self, name)):
                raise ConfigurationError(f"the {name} handler must be a function")

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """The topics of the handlers that are a `DeadLetterQueue`."""
        handlers = (self.deserialization, self.processing, self.production)
        found = [one.topic for one in handlers if isinstance(one, DeadLetterQueue)]
        return tuple(dict.fromkeys(found))
