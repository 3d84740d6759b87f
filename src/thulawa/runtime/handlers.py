"""Error handlers, for records that cannot be deserialized, processed or produced.

A handler is a function of the error and the input record; it returns `Fail` (the default),
`Resume`, or, for outputs, `RetryOutput`. The dead letters of a response are sent like any output:
if that fails, the task fails, and nothing is lost. Values are never logged.
"""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from thulawa.core.names import check_name
from thulawa.core.records import LAST_OUTPUT_TIMESTAMP, Headers
from thulawa.core.serdes import WithoutData
from thulawa.errors import ConfigurationError, StreamError, message_of
from thulawa.runtime.metrics import Reason
from thulawa.topology.nodes import Sink

_log = logging.getLogger("thulawa.streams")


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The input record that an error is about, as it was read from its topic.

    ``output`` is the record that could not be produced, if any; the other fields are those of the
    input that caused it. If the input is not known (the output was held in a cache or window, or
    sent by a punctuation), key and value are those of the output, and ``topic`` is None.
    """

    node: str | None
    topic: str | None
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers
    output: "FailedOutput | None" = None


@dataclass(frozen=True, slots=True)
class FailedOutput:
    """An output that could not be produced: key and value before serialization."""

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for a dead-letter topic.

    Its timestamp is the nearest one that a topic accepts: the record's may be why it failed.
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
    """Drop the record and continue."""

    dead_letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryOutput:
    """Send the output again; fail after ``attempts``."""

    attempts: int = 3


# sink (None for a dead letter), topic, key, value, timestamp, headers
Send: TypeAlias = Callable[[Sink | None, str, Any, Any, int, Headers], None]
Response: TypeAlias = Fail | Resume | RetryOutput
Handler: TypeAlias = Callable[[StreamError, ErrorRecord], Response]


def log_and_fail(error: StreamError, record: ErrorRecord) -> Response:
    """Log the position of the record, and fail."""
    _log.error("%s: %s", type(error).__name__, _position(record))
    return Fail()


def log_and_continue(error: StreamError, record: ErrorRecord) -> Response:
    """Log the position of the record, and drop it."""
    _log.warning("skipped, %s: %s", type(error).__name__, _position(record))
    return Resume()


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """Send the record to a dead-letter topic, with headers that describe the error, and continue.

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
        """Return `Resume` with the dead letter."""
        return Resume((self.letter(error, record),))

    def letter(self, error: StreamError, record: ErrorRecord) -> DeadLetter:
        """Create the dead letter."""
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
    """Return class, message and stack trace of the original exception."""
    summary = str(error.args[0]) if error.args else ""
    cause = error.__cause__
    if isinstance(cause, WithoutData):
        return str(cause), summary, "".join(traceback.format_tb(error.__traceback__))
    raised = cause or error
    own = summary if cause is None else message_of(cause) or summary
    return type(raised).__qualname__, own, "".join(traceback.format_exception(raised))


def apply_response(response: Response, error: StreamError, send: Send) -> Reason:
    """Send the dead letters of a response; return why the record is dropped, or raise ``error``."""
    letters = response.dead_letters if isinstance(response, Fail | Resume) else ()
    for letter in letters:
        send(None, letter.topic, letter.key, letter.value, letter.timestamp, letter.headers)
    if not isinstance(response, Resume):
        raise error
    return "dead_letter" if letters else "skipped"


def as_stream_error(error: Exception, kind: type[StreamError], when: str) -> StreamError:
    """Return a `StreamError` as it is, and another error as the cause of one of this kind."""
    if isinstance(error, StreamError):
        return error
    wrapped = kind(f"{type(error).__name__} {when}")
    wrapped.__cause__ = error
    return wrapped


def _position(record: ErrorRecord) -> str:
    return f"{record.topic}-{record.partition} at {record.offset}, node {record.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The error handlers of an application; each fails by default."""

    deserialization: Handler = log_and_fail
    processing: Handler = log_and_fail
    production: Handler = log_and_fail

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
