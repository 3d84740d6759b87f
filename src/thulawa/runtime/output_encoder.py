"""Serialize outputs by their sink's serdes, limit their size, and handle their errors."""

from bisect import bisect_right
from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate, starmap
from typing import Any, NamedTuple, TypeAlias

from thulawa.core.records import LAST_OUTPUT_TIMESTAMP, Headers
from thulawa.core.serdes import Serdes
from thulawa.errors import ProcessingError, ProductionError, SerializationError, TimestampError
from thulawa.runtime.context import TaskContext
from thulawa.runtime.dead_letter_records import error_headers_start
from thulawa.runtime.handlers import (
    ErrorRecord,
    FailedOutput,
    RetryOutput,
    Send,
    apply_response,
    as_stream_error,
)
from thulawa.runtime.task_options import TaskOptions
from thulawa.topology.nodes import Sink

# topic -> maximum size of a record, None: unlimited; raises ProductionError if it does not exist
TopicLimit: TypeAlias = Callable[[str], int | None]

_HEADER_OVERHEAD = 10
_MAX_HEADER_NAME = 2**16 - 1  # bytes
_MAX_PART_BYTES = 64 * 1024  # of each field of a truncated dead letter


class EncodedRecord(NamedTuple):
    """A serialized record."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class OutputEncoder:
    """Serialize the outputs of a collector, and call the production handler for errors.

    ``send`` sends dead letters; ``limit_of`` returns the size limit of a topic (default: none).
    """

    def __init__(
        self, options: TaskOptions, send: Send, limit_of: TopicLimit | None = None
    ) -> None:
        self._handler = options.handlers.production
        self._max_bytes = options.max_record_bytes
        self._limit_of = limit_of
        self._send = send
        self.context: TaskContext | None = None
        """The context of the task, from which the input record of a failed output is known."""

    def encode(
        self,
        sink: Sink | None,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        failed: Exception | None = None,
    ) -> EncodedRecord | None:
        """Return the serialized record; None if the handler drops it.

        A dead letter (``sink`` is None) that is too large for its topic is truncated. One that
        cannot be written raises: nothing may be lost silently. ``failed`` is the error of a first
        attempt that the caller has made.
        """
        failures = 0
        while True:
            if failed is None:
                try:
                    return self._encoded(sink, topic, key, value, headers)
                except Exception as problem:  # noqa: BLE001 serdes may be the user's own
                    failed = problem
            error = as_stream_error(failed, ProductionError, "while an output was written")
            failed = None
            error.node = topic if sink is None else sink.name
            error.topic = topic
            if sink is None:
                raise error
            failures += 1
            record = self._record(sink, FailedOutput(topic, key, value, timestamp, headers))
            response = self._handler(error, record)
            if isinstance(response, RetryOutput) and failures < response.attempts:
                continue
            reason = apply_response(response, error, self._send)
            if self.context is not None:
                self.context.drop(sink.name, reason)
            return None

    def _record(self, sink: Sink, output: FailedOutput) -> ErrorRecord:
        """Return the record for the handler: the input that caused the output, if it is known."""
        context = self.context
        raw = None if context is None else context.raw()
        if context is None or raw is None:
            position: tuple[str | None, int, int] = (None, -1, -1)
            raw = -1, output.timestamp, output.key, output.value, output.headers
        else:
            position = context.topic, context.partition, context.offset
        _, timestamp, key, value, headers = raw
        return ErrorRecord(sink.name, *position, key, value, timestamp, headers, output)

    def limit(self, topic: str) -> int | None:
        """Return the size limit of a topic; raise `ProductionError` if it does not exist."""
        limit = None if self._limit_of is None else self._limit_of(topic)
        return min((one for one in (limit, self._max_bytes) if one is not None), default=None)

    def _encoded(
        self, sink: Sink | None, topic: str, key: Any, value: Any, headers: Headers
    ) -> EncodedRecord:
        limit = self.limit(topic)
        if sink is None:
            letter = EncodedRecord(_dead_letter_bytes(key), _dead_letter_bytes(value), headers)
            if limit is None or record_size(*letter) <= limit:
                return letter
            return _truncated(letter, limit)
        if sink.key_serde is not None:
            key = sink.key_serde.dumps(key)
        if sink.value_serde is not None:
            value = sink.value_serde.dumps(value)
        encoded = EncodedRecord(_bytes(key), _bytes(value), headers)
        if limit is not None and (size := record_size(*encoded)) > limit:
            raise ProductionError(f"the record has {size} bytes, more than the limit of {limit}")
        return encoded


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a record in bytes."""
    size = len(key or b"") + len(value or b"")
    if headers:
        size += sum(starmap(_header_size, headers))
    return size


def _header_size(name: str, data: bytes | None) -> int:
    return len(name.encode()) + len(data or b"") + _HEADER_OVERHEAD


def check_written(timestamp: Any, headers: Any) -> None:
    """Raise if a record that user code created cannot be written to any topic.

    It would otherwise fail in the sink, at the end of the batch, without a call of a handler.
    """
    if type(timestamp) is not int or not 0 <= timestamp <= LAST_OUTPUT_TIMESTAMP:
        raise TimestampError(
            f"the timestamp {timestamp!r:.40} is not an int of milliseconds from 0 to "
            f"{LAST_OUTPUT_TIMESTAMP}"
        )
    for header in headers:
        match header:
            case (str(name), bytes() | None) if name.isascii() or _is_text(name):
                if len(name.encode()) <= _MAX_HEADER_NAME:
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


def _truncated(letter: EncodedRecord, limit: int) -> EncodedRecord:
    """Truncate a dead letter; headers get the size and the SHA-256 of its whole value.

    The headers of the original record come first, and are dropped if they do not fit.
    """
    key, value, headers = letter
    whole = value or b""
    added = (
        ("thulawa.errors.size", str(len(whole)).encode()),
        ("thulawa.errors.sha256", sha256(whole).hexdigest().encode()),
    )
    most = min(_MAX_PART_BYTES, limit // 8)  # key, message, stack trace: half of it at most
    short = [(name, data and data[:most]) for name, data in headers]
    own = error_headers_start(headers, len(headers))
    errors = (*short[own:], *added)
    key = key and key[:most]
    value = value and value[: max(0, min(_MAX_PART_BYTES, limit - record_size(key, None, errors)))]
    room = limit - record_size(key, value, errors)
    sizes = list(accumulate(starmap(_header_size, reversed(short[:own]))))
    return EncodedRecord(key, value, (*short[own - bisect_right(sizes, room) : own], *errors))


def as_bytes(data: Any) -> bytes | None:
    """Serialize data without a serde: bytes and text as they are, other data as JSON.

    Dead letters of records behind a repartition need this: they hold values, not bytes.
    """
    if data is None or isinstance(data, bytes | str):
        return _bytes(data)
    try:
        return Serdes.json().dumps(data)
    except SerializationError:
        return repr(data).encode(errors="backslashreplace")


def _dead_letter_bytes(data: Any) -> bytes | None:
    """Return the bytes of a dead letter's key or value, whatever its type."""
    try:
        return as_bytes(data)
    except Exception:  # noqa: BLE001 the content of a dead letter must not stop an application
        text = data if isinstance(data, str) else f"a {type(data).__qualname__}"
        return text.encode(errors="backslashreplace")


def _bytes(data: Any) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    raise ProductionError(
        f"a {type(data).__name__} cannot be written to a topic; pass a serde for the output"
    )


def chosen_partition(
    partitioner: Callable[..., Any], key: Any, value: Any, count: int, node: str
) -> int:
    """Return the partition that a user-defined partitioner chooses; raise if it is out of range."""
    partition: Any = partitioner(key, value, count)
    if type(partition) is not int or not 0 <= partition < count:
        raise ProductionError(
            f"the partitioner returned {partition!r}, and there are {count} partitions", node=node
        )
    return partition
