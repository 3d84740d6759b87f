"""Stream-stream joins.

Each side stores its records and looks up those of the other side. Unmatched records of a left or
outer join are held in a buffer that both sides share, ordered by time, right before left, then key.
They are emitted when stream time has passed their window and grace.
"""

from typing import Any

from thulawa.core.records import Headers
from thulawa.runtime.context import Failed, Forward, TaskContext
from thulawa.state.stores import TimeOrderedBuffer
from thulawa.state.window_stores import JoinStore
from thulawa.topology.nodes import JoinBuffer, StreamJoin

_RIGHT, _LEFT = 0, 1  # in the sort order of the shared buffer


def join_buffer(node: JoinBuffer, context: TaskContext, forward: Forward) -> Forward:
    """Store the records of one side."""
    store: JoinStore = context.store(node.store)
    # the time of the newest record without a value, which is not stored but must survive a restart
    empty = context.clock(f"{node.store}/empty")

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            if value is None:  # it is not stored, but advances the time by which others expire
                empty.time = max(empty.time, timestamp)
            if empty.time >= timestamp:
                store.observe(empty.time)
            if value is not None:
                store.put(key, value, timestamp)
        forward(key, value, timestamp, headers)

    return process


def stream_join(
    node: StreamJoin, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Join the records of one side with the stored records of the other."""
    return _StreamJoinSide(node, context, forward, failed).process


class _StreamJoinSide:
    def __init__(
        self, node: StreamJoin, context: TaskContext, forward: Forward, failed: Failed
    ) -> None:
        self._context = context
        self._forward = forward
        self._failed = failed
        self._joiner = node.joiner
        self._clock = context.clock(node.clock)
        self._others: JoinStore = context.store(node.other_store)
        self._waiting: TimeOrderedBuffer | None = None
        if node.outer_store is not None:
            self._waiting = context.store(node.outer_store)
        self._name = node.name
        window = node.window
        self._mine, self._theirs = (_LEFT, _RIGHT) if node.side == "left" else (_RIGHT, _LEFT)
        # A left record waits for later right ones, a right record for later left ones.
        self._wait = {_LEFT: window.after + window.grace, _RIGHT: window.before + window.grace}
        self._shortest_wait = min(self._wait.values())
        earlier, later = window.before, window.after
        if node.side == "right":
            earlier, later = later, earlier
        self._earlier = earlier
        self._later = later
        self._last = -1 if node.prior else later  # prior: strictly older ones only
        self._keeps_unmatched = node.kind == "outer" or (node.kind, node.side) == ("left", "left")

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Process one record of this side."""
        if timestamp > self._clock.time:
            self._clock.time = timestamp
        try:
            if key is None or value is None:
                return self._unkeyed(key, value, timestamp, headers)
            if timestamp == self._clock.time:
                self._emit_unmatched(headers)
            first, last = timestamp - self._earlier, timestamp + self._last
            found = list(self._others.fetch(key, first, last))
            results = [
                (max(time, timestamp), self._joined(key, value, other)) for time, other in found
            ]
            too_late = self._waiting is None or timestamp + self._later < self._clock.time
            if not found and self._keeps_unmatched and too_late:
                results = [(timestamp, self._joined(key, value, None))]
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return self._failed(error, key, value, timestamp, headers)
        if self._waiting is not None:
            identity = self._waiting.keys.identity(key)
            for time, _ in found:
                self._waiting.remove((time, self._theirs, identity))
            if not results and self._keeps_unmatched:
                self._wait_for_match(self._waiting, key, value, timestamp)
        for time, result in results:
            self._forward(key, result, time, headers)
        return None

    def _unkeyed(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Emit a record without a key unmatched, if this side emits unmatched records."""
        if self._keeps_unmatched and value is not None:
            self._forward(key, self._joined(key, value, None), timestamp, headers)
        else:
            self._context.drop(self._name)

    def _joined(self, key: Any, mine: Any, other: Any) -> Any:
        left, right = (mine, other) if self._mine == _LEFT else (other, mine)
        return self._joiner(key, left, right)

    def _wait_for_match(
        self, waiting: TimeOrderedBuffer, key: Any, value: Any, timestamp: int
    ) -> None:
        entry = (timestamp, self._mine, waiting.keys.identity(key))
        waiting.put(timestamp, entry, (*(waiting.get(entry) or ()), value))

    def _emit_unmatched(self, headers: Headers) -> None:
        """Emit the records that can no longer be matched."""
        waiting, now = self._waiting, self._clock.time
        earliest = None if waiting is None else waiting.earliest()
        if waiting is None or earliest is None or earliest + self._shortest_wait >= now:
            return
        for time, entry in waiting:
            if time + self._shortest_wait >= now:
                return
            _, side, identity = entry
            if time + self._wait[side] < now:
                values = waiting.get(entry)
                waiting.remove(entry)
                for value in values:
                    self._emit_alone(side, waiting.keys.key(identity), value, time, headers)

    def _emit_alone(self, side: int, key: Any, value: Any, time: int, headers: Headers) -> None:
        """Emit an unmatched record; an error is not attributed to the current record."""
        left, right = (value, None) if side == _LEFT else (None, value)
        try:
            result = self._joiner(key, left, right)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            with self._context.attribute_errors_to(None):
                self._failed(error, key, value, time, headers)
        else:
            self._forward(key, result, time, headers)
