"""Suppression: hold the updates of a table, and emit only the last one of each key."""

from typing import Any

from thulawa.core.records import Change, Headers
from thulawa.errors import ProcessingError
from thulawa.runtime.context import Forward, TaskContext
from thulawa.state.stores import TimeOrderedBuffer
from thulawa.topology.nodes import Suppress


def suppress(node: Suppress, context: TaskContext, forward: Forward) -> Forward:
    """Hold updates until their window closes, the time limit expires, or the buffer is exceeded.

    Time is the highest timestamp of the node's updates. The old value of an emitted change is the
    one that was last emitted, since child nodes have seen no other.
    """
    buffer: TimeOrderedBuffer = context.store(node.store)
    clock = context.clock(node.store)
    final = node.until == "window_close"
    bounds = _BufferBounds(node, buffer)
    keys = buffer.keys

    def emit_first() -> None:
        identity, (new, prior, timestamp, headers) = buffer.pop_first()
        if new is not None or not final:
            with context.attribute_errors_to(None):
                forward(keys.key(identity), Change(new, prior), timestamp, headers)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        identity = keys.identity(key)
        clock.time = max(clock.time, timestamp)
        held = buffer.get(identity)
        prior = change.old if held is None else held[1]
        time = key.window.end if final else timestamp
        buffer.put(time, identity, (change.new, prior, timestamp, headers))
        due = clock.time - node.wait
        while (earliest := buffer.earliest()) is not None and earliest <= due:
            emit_first()
        while bounds.exceeded():
            if node.when_full == "fail":
                raise ProcessingError(
                    f"the suppression buffer is full with {len(buffer)} records: raise its bounds, "
                    "or emit early",
                    node=node.name,
                )
            emit_first()

    return process


class _BufferBounds:
    """The bounds of a suppression buffer."""

    def __init__(self, node: Suppress, buffer: TimeOrderedBuffer) -> None:
        self._buffer = buffer
        self._records = node.max_records
        self._bytes = node.max_bytes

    def exceeded(self) -> bool:
        if self._records is not None and len(self._buffer) > self._records:
            return True
        return self._bytes is not None and len(self._buffer) > 0 and self._size() > self._bytes

    def _size(self) -> int:
        return sum(8 + len(repr(key)) + len(repr(self._buffer.get(key))) for _, key in self._buffer)
