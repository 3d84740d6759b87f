"""Suppression: updates of a table wait, and only the last one of each key leaves."""

from typing import Any

from thulawa.core.errors import ProcessingError
from thulawa.core.records import Change, Headers
from thulawa.runtime.context import Forward, TaskContext
from thulawa.state.buffers import TimeOrderedBuffer
from thulawa.topology.nodes import Suppress

__all__ = ["suppress"]


def suppress(node: Suppress, context: TaskContext, forward: Forward) -> Forward:
    """Hold updates back until their window closes, their time is over, or room runs out.

    Time is the highest timestamp of the updates that come here. The value before is the last
    one that left, not the last one that came: who follows has seen no other.
    """
    buffer: TimeOrderedBuffer = context.store(node.store)
    clock = context.clock(node.store)
    final = node.until == "window_close"
    over = _Room(node, buffer)

    keys = buffer.keys

    def emit_first() -> None:
        place, (new, prior, timestamp, headers) = buffer.pop_first()
        if new is not None or not final:
            with context.about(None):
                forward(keys.key(place), Change(new, prior), timestamp, headers)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        place = keys.identity(key)
        clock.time = max(clock.time, timestamp)
        held = buffer.get(place)
        prior = change.old if held is None else held[1]
        time = key.window.end if final else timestamp
        buffer.put(time, place, (change.new, prior, timestamp, headers))
        due = clock.time - node.wait
        while (earliest := buffer.earliest()) is not None and earliest <= due:
            emit_first()
        while over.full():
            if node.when_full == "fail":
                raise ProcessingError(
                    f"the buffer is over its bound with {len(buffer)} records",
                    node=node.name,
                )
            emit_first()

    return process


class _Room:
    """Whether a buffer is beyond its bounds."""

    def __init__(self, node: Suppress, buffer: TimeOrderedBuffer) -> None:
        self._buffer = buffer
        self._records = node.max_records
        self._bytes = node.max_bytes

    def full(self) -> bool:
        if self._records is not None and len(self._buffer) > self._records:
            return True
        return self._bytes is not None and len(self._buffer) > 0 and self._size() > self._bytes

    def _size(self) -> int:
        return sum(8 + len(repr(key)) + len(repr(self._buffer.get(key))) for _, key in self._buffer)
