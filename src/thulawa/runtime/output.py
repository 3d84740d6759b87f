"""Outputs: encoded by their sink's serdes, bounded in size, answered for when they fail."""

from collections.abc import Callable
from typing import Any, TypeAlias

from thulawa.core.errors import ProductionError, SerializationError, StreamError
from thulawa.core.records import Headers
from thulawa.core.serdes import Serdes
from thulawa.runtime.handlers import ErrorRecord, Resume, Retry
from thulawa.runtime.options import TaskOptions
from thulawa.topology.nodes import Sink

__all__ = ["Encoder", "chosen_partition"]

# sink or None, topic, key, value, timestamp, headers
Send: TypeAlias = Callable[[Sink | None, str, Any, Any, int, Headers], None]


class Encoder:
    """What a host's collector does before it sends. ``send`` takes dead letters."""

    def __init__(self, options: TaskOptions, send: Send) -> None:
        self._handler = options.handlers.production
        self._largest = options.max_record_bytes
        self._send = send

    def encode(
        self,
        sink: Sink | None,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        failed: Exception | None = None,
    ) -> tuple[bytes | None, bytes | None] | None:
        """Return the bytes of key and value; None when the handler skips the record.

        A dead letter (``sink`` is None) that cannot be written is an error: nothing may be
        lost silently. ``failed`` is the error of a first attempt that the caller has made.
        """
        failures = 0
        while True:
            if failed is None:
                try:
                    return self._encoded(sink, key, value)
                except Exception as problem:  # noqa: BLE001 serdes may be the user's own
                    failed = problem
            error, failed = _named(failed), None
            error.node = topic if sink is None else sink.name
            error.topic = topic
            if sink is None:
                raise error
            failures += 1
            record = ErrorRecord(sink.name, topic, 0, -1, key, value, timestamp, headers)
            answer = self._handler(error, record)
            if isinstance(answer, Retry) and failures < answer.attempts:
                continue
            if not isinstance(answer, Resume):
                raise error
            for letter in answer.dead_letters:
                self._send(
                    None, letter.topic, letter.key, letter.value, letter.timestamp, letter.headers
                )
            return None

    def _encoded(
        self, sink: Sink | None, key: Any, value: Any
    ) -> tuple[bytes | None, bytes | None]:
        if sink is None:
            return _bytes(_letter(key)), _bytes(_letter(value))
        if sink.key_serde is not None:
            key = sink.key_serde.dumps(key)
        if sink.value_serde is not None:
            value = sink.value_serde.dumps(value)
        raw_key, raw_value = _bytes(key), _bytes(value)
        if self._largest is not None:
            size = len(raw_key or b"") + len(raw_value or b"")
            if size > self._largest:
                raise ProductionError(f"the record has {size} bytes, more than {self._largest}")
        return raw_key, raw_value


def _letter(data: Any) -> Any:
    """Return what a record without a sink holds as bytes or text.

    Dead letters of records behind a repartition hold values, not bytes.
    """
    if data is None or isinstance(data, bytes | str):
        return data
    try:
        return Serdes.json().dumps(data)
    except SerializationError:
        return repr(data)


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
