"""Outputs: encoded by their sink's serdes, bounded in size, answered for when they fail."""

from bisect import bisect_right
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate, starmap
from typing import Any, NamedTuple, TypeAlias

from thulawa.core.errors import (
    ProcessingError,
    ProductionError,
    SerializationError,
    StreamError,
    TimestampError,
)
from thulawa.core.records import LAST_OUTPUT_TIMESTAMP, Headers
from thulawa.core.serdes import Serdes
from thulawa.runtime.context import TaskContext
from thulawa.runtime.handlers import ErrorRecord, Output, Resume, Retry
from thulawa.runtime.metrics import Reason
from thulawa.runtime.options import TaskOptions
from thulawa.topology.nodes import Sink

__all__ = ["Encoded", "Encoder", "as_bytes", "check_written", "chosen_partition", "record_size"]

# sink or None, topic, key, value, timestamp, headers
Send: TypeAlias = Callable[[Sink | None, str, Any, Any, int, Headers], None]
# the most bytes of a record of a topic, None: any; raises ProductionError: no such topic
Limit: TypeAlias = Callable[[str], int | None]

_HEADER_OVERHEAD = 10
_LONGEST_HEADER_NAME = 2**16 - 1  # bytes
_ERROR = "__streams.errors.exception"  # the first of the headers that a dead letter adds
_KEPT = 64 * 1024  # bytes of each part of a dead letter that is too large


class Encoded(NamedTuple):
    """A record as it is written."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Encoder:
    """What a host's collector does before it sends. ``send`` takes dead letters.

    ``limit_of`` says what a topic takes; without it, any topic takes everything.
    """

    def __init__(self, options: TaskOptions, send: Send, limit_of: Limit | None = None) -> None:
        self._handler = options.handlers.production
        self._largest = options.max_record_bytes
        self._limit_of = limit_of
        self._send = send
        self.context: TaskContext | None = None
        """The task whose outputs these are: an output that fails is told by its input."""

    def encode(
        self,
        sink: Sink | None,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        failed: Exception | None = None,
    ) -> Encoded | None:
        """Return the record as it is written; None when the handler skips it.

        A dead letter (``sink`` is None) that is too large for its topic is cut. One that cannot be
        written is an error: nothing may be lost silently. ``failed`` is the error of a first
        attempt that the caller has made.
        """
        failures = 0
        while True:
            if failed is None:
                try:
                    return self._encoded(sink, topic, key, value, headers)
                except Exception as problem:  # noqa: BLE001 serdes may be the user's own
                    failed = problem
            error, failed = _named(failed), None
            error.node = topic if sink is None else sink.name
            error.topic = topic
            if sink is None:
                raise error
            failures += 1
            record = self._record(sink, Output(topic, key, value, timestamp, headers))
            answer = self._handler(error, record)
            if isinstance(answer, Retry) and failures < answer.attempts:
                continue
            if not isinstance(answer, Resume):
                raise error
            for letter in answer.dead_letters:
                self._send(
                    None, letter.topic, letter.key, letter.value, letter.timestamp, letter.headers
                )
            if self.context is not None:
                reason: Reason = "dead_letter" if answer.dead_letters else "skipped"
                self.context.drop(sink.name, reason)
            return None

    def _record(self, sink: Sink, output: Output) -> ErrorRecord:
        """Return what the handler is told: the input that the output comes of, if it is known."""
        context = self.context
        raw = None if context is None else context.raw()
        if context is None or raw is None:
            key, value = output.key, output.value
            timestamp, headers = output.timestamp, output.headers
            return ErrorRecord(sink.name, None, -1, -1, key, value, timestamp, headers, output)
        _, timestamp, key, value, headers = raw
        place = context.topic, context.partition, context.offset
        return ErrorRecord(sink.name, *place, key, value, timestamp, headers, output)

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a record of a topic; raise `ProductionError`: no such topic."""
        limit = None if self._limit_of is None else self._limit_of(topic)
        return min((one for one in (limit, self._largest) if one is not None), default=None)

    def _encoded(
        self, sink: Sink | None, topic: str, key: Any, value: Any, headers: Headers
    ) -> Encoded:
        limit = self.limit(topic)
        if sink is None:
            letter = Encoded(_shown(key), _shown(value), headers)
            if limit is None or record_size(*letter) <= limit:
                return letter
            return _cut(letter, limit)
        if sink.key_serde is not None:
            key = sink.key_serde.dumps(key)
        if sink.value_serde is not None:
            value = sink.value_serde.dumps(value)
        encoded = Encoded(_bytes(key), _bytes(value), headers)
        if limit is not None and (size := record_size(*encoded)) > limit:
            raise ProductionError(f"the record has {size} bytes, more than {limit}")
        return encoded


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of a record."""
    size = len(key or b"") + len(value or b"")
    if headers:
        size += sum(starmap(_header_size, headers))
    return size


def _header_size(name: str, data: bytes | None) -> int:
    return len(name.encode()) + len(data or b"") + _HEADER_OVERHEAD


def check_written(timestamp: Any, headers: Any) -> None:
    """Raise where a record of the user's own cannot be written to any topic.

    It would fail in the sink, at the end of the batch, where no handler is asked.
    """
    if type(timestamp) is not int or not 0 <= timestamp <= LAST_OUTPUT_TIMESTAMP:
        raise TimestampError(
            f"the timestamp {timestamp!r:.40} is no whole number of milliseconds from 0 to "
            f"{LAST_OUTPUT_TIMESTAMP}"
        )
    for header in headers:
        match header:
            case (str(name), bytes() | None) if name.isascii() or _is_text(name):
                if len(name.encode()) <= _LONGEST_HEADER_NAME:
                    continue
        raise ProcessingError(
            "headers are pairs of a name, which is text of at most 65,535 bytes, and bytes or None"
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cut(letter: Encoded, limit: int) -> Encoded:
    """Return the beginning of a dead letter, with the size and the SHA-256 of its whole value.

    The headers that its record came with stand first and are left out where they do not fit.
    """
    key, value, headers = letter
    whole = value or b""
    told = (
        ("thulawa.errors.size", str(len(whole)).encode()),
        ("thulawa.errors.sha256", sha256(whole).hexdigest().encode()),
    )
    most = min(_KEPT, limit // 8)  # key, message, stack trace: half of it at most
    short = [(name, data and data[:most]) for name, data in headers]
    names = [name for name, _ in headers]
    own = len(names) - names[::-1].index(_ERROR) - 1 if _ERROR in names else len(names)
    errors = (*short[own:], *told)
    key = key and key[:most]
    value = value and value[: max(0, min(_KEPT, limit - record_size(key, None, errors)))]
    room = limit - record_size(key, value, errors)
    sizes = list(accumulate(starmap(_header_size, reversed(short[:own]))))
    return Encoded(key, value, (*short[own - bisect_right(sizes, room) : own], *errors))


def as_bytes(data: Any) -> bytes | None:
    """Return what is written where no serde is named: bytes and text as they are, or else JSON.

    So are dead letters of records behind a repartition, which hold values and not bytes.
    """
    if data is None or isinstance(data, bytes | str):
        return _bytes(data)
    try:
        return Serdes.json().dumps(data)
    except SerializationError:
        return repr(data).encode(errors="backslashreplace")


def _shown(data: Any) -> bytes | None:
    """Return a part of a dead letter, whatever it is: for people to look at."""
    try:
        return as_bytes(data)
    except Exception:  # noqa: BLE001 no dead letter may stop an application by what it holds
        text = data if isinstance(data, str) else f"a {type(data).__qualname__}"
        return text.encode(errors="backslashreplace")


def _bytes(data: Any) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    raise ProductionError(
        f"a {type(data).__name__} cannot be written to a topic; give the output a serde"
    )


def chosen_partition(
    partitioner: Callable[..., Any], key: Any, value: Any, count: int, node: str
) -> int:
    """Give the partition that a partitioner of the user's own chooses, if there is such a one."""
    partition: Any = partitioner(key, value, count)
    if type(partition) is not int or not 0 <= partition < count:
        raise ProductionError(
            f"the partitioner gave {partition!r}, and there are {count} partitions", node=node
        )
    return partition


def _named(error: Exception) -> StreamError:
    if isinstance(error, StreamError):
        return error
    wrapped = ProductionError(f"{type(error).__name__} while an output was written")
    wrapped.__cause__ = error
    return wrapped
