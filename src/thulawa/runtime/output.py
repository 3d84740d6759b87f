"""Outputs: encoded by their sink's serdes, bounded in size, answered for when they fail."""

from collections.abc import Callable
from typing import Any, TypeAlias

from thulawa.core.errors import ProductionError, StreamError
from thulawa.core.records import Headers
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
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> tuple[Any, Any] | None:
        """Give key and value as they are written; None when the handler leaves the record out.

        A dead letter (``sink`` is None) that cannot be written is an error: nothing may be
        lost silently.
        """
        failures = 0
        while True:
            try:
                return self._encoded(sink, key, value)
            except Exception as problem:  # noqa: BLE001 serdes may be the user's own
                error = _named(problem)
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

    def _encoded(self, sink: Sink | None, key: Any, value: Any) -> tuple[Any, Any]:
        if sink is None:
            return key, value
        if sink.key_serde is not None:
            key = sink.key_serde.dumps(key)
        if sink.value_serde is not None:
            value = sink.value_serde.dumps(value)
        if self._largest is not None:
            size = sum(len(part) for part in (key, value) if isinstance(part, bytes | str))
            if size > self._largest:
                raise ProductionError(f"the record has {size} bytes, more than {self._largest}")
        return key, value


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
