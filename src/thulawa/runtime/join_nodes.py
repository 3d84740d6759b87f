"""Joins: stream-stream, stream-table and table-table.

Each side of a stream-stream join stores its records and looks up those of the other side. Unmatched
records of a left or outer join are held in a buffer that both sides share, ordered by time, right
before left, then key. They are emitted when stream time has passed their window and grace.
"""

from collections.abc import Callable
from typing import Any

from thulawa.core.records import Change, Headers
from thulawa.runtime.context import Forward, TaskContext, Wiring
from thulawa.state.stores import TimeOrderedBuffer
from thulawa.state.window_stores import JoinStore
from thulawa.topology.nodes import JoinBuffer, LookupJoin, StreamJoin, TableJoin

_RIGHT, _LEFT = 0, 1  # in the sort order of the shared buffer


def join_buffer(node: JoinBuffer, wiring: Wiring) -> Forward:
    """Store the records of one side."""
    context, forward = wiring.context, wiring.forward
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


def stream_join(node: StreamJoin, wiring: Wiring) -> Forward:
    """Join the records of one side with the stored records of the other."""
    return _StreamJoinSide(node, wiring).process


class _StreamJoinSide:
    def __init__(self, node: StreamJoin, wiring: Wiring) -> None:
        self._context = context = wiring.context
        self._forward = wiring.forward
        self._failed = wiring.failed
        self._joiner = node.joiner
        self._clock = context.clock(node.clock)
        self._others: JoinStore = context.store(node.other_store)
        outer = node.outer_store
        self._waiting: TimeOrderedBuffer | None = None if outer is None else context.store(outer)
        self._name = node.name
        window = node.window
        self._mine, self._theirs = (_LEFT, _RIGHT) if node.side == "left" else (_RIGHT, _LEFT)
        # A left record waits for later right ones, a right record for later left ones.
        self._wait = {_LEFT: window.after + window.grace, _RIGHT: window.before + window.grace}
        self._shortest_wait = min(self._wait.values())
        self._earlier, self._later = window.before, window.after
        if node.side == "right":
            self._earlier, self._later = window.after, window.before
        self._last = -1 if node.prior else self._later  # prior: strictly older ones only
        self._keeps_unmatched = node.kind == "outer" or (node.kind, node.side) == ("left", "left")

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
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
                entry = (timestamp, self._mine, identity)
                self._waiting.put(timestamp, entry, (*(self._waiting.get(entry) or ()), value))
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


def lookup_join(node: LookupJoin, wiring: Wiring) -> Forward:
    """Join a record with the table's current row, or with the row as of the record's time."""
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    look_up = _look_up(node, context)
    selector, joiner, left = node.key_selector, node.joiner, node.left

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            table_key = key if selector is None else selector(key, value)
            relaxed = left and key is None and value is not None
            if value is None or (table_key is None and not relaxed):
                return context.drop(node.name)
            entry = None if table_key is None else look_up(table_key, timestamp)
            if entry is None and not left:
                return None
            result = joiner(key, value, None if entry is None else entry[0])
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return forward(key, result, timestamp, headers)

    if node.buffer is None:
        return process
    return _with_grace(node, context, process)


def _look_up(
    node: LookupJoin, context: TaskContext
) -> Callable[[Any, int], tuple[Any, int] | None]:
    as_of = context.views.as_of(node.table)
    if as_of is not None:
        return as_of
    latest = context.views.latest(node.table)
    return lambda key, _: latest(key)


def _with_grace(node: LookupJoin, context: TaskContext, process: Forward) -> Forward:
    """Buffer records until stream time has passed them by the grace period."""
    assert node.buffer is not None
    buffer: TimeOrderedBuffer = context.store(node.buffer)
    clock = context.clock(node.buffer)
    grace = node.grace

    def hold(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        clock.time = max(clock.time, timestamp)
        due = clock.time - grace
        if key is None or value is None or timestamp < due:
            return process(key, value, timestamp, headers)
        entry = (timestamp, buffer.keys.identity(key))
        buffer.put(timestamp, entry, (*(buffer.get(entry) or ()), (value, headers)))
        while (earliest := buffer.earliest()) is not None and earliest <= due:
            (time, identity), records = buffer.pop_first()
            held_key = buffer.keys.key(identity)
            with context.attribute_errors_to(None):
                for held_value, held_headers in records:
                    process(held_key, held_value, time, held_headers)
        return None

    return hold


def table_join(node: TableJoin, wiring: Wiring) -> Forward:
    """Join an update of one table with the row of the other."""
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    is_left, joiner = node.side == "left", node.joiner
    mine, theirs = (node.table, node.other) if is_left else (node.other, node.table)
    other = context.views.latest(theirs)
    versioned = context.views.is_versioned(mine)
    # whether there is no result without a row on this side, or on the other
    needs_mine = node.kind == "inner" or (node.kind == "left" and is_left)
    needs_other = node.kind == "inner" or (node.kind == "left" and not is_left)

    def joined(row: Any, other_row: Any) -> Any:
        if row is None and (needs_mine or other_row is None):
            return None
        if other_row is None and needs_other:
            return None
        return joiner(row, other_row) if is_left else joiner(other_row, row)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (versioned and not change.latest):
            return context.drop(node.name)
        try:
            entry = other(key)
            row = None if entry is None else entry[0]
            new, old = joined(change.new, row), joined(change.old, row)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        if row is None and (needs_other or (change.new is None and change.old is None)):
            return None
        time = timestamp if entry is None else max(timestamp, entry[1])
        return forward(key, Change(new, old, change.latest), time, headers)

    return process
