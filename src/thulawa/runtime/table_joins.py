"""Stream-table and table-table joins."""

from collections.abc import Callable
from typing import Any

from thulawa.core.records import Change, Headers
from thulawa.runtime.context import Failed, Forward, TaskContext
from thulawa.runtime.views import Views
from thulawa.state.stores import TimeOrderedBuffer
from thulawa.topology.nodes import LookupJoin, TableJoin


def lookup_join(
    node: LookupJoin, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    """Join a record with the table's current row, or with the row as of the record's time."""
    look_up = _look_up(node, views)
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


def _look_up(node: LookupJoin, views: Views) -> Callable[[Any, int], tuple[Any, int] | None]:
    as_of = views.as_of(node.table)
    if as_of is not None:
        return as_of
    latest = views.latest(node.table)
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


def table_join(
    node: TableJoin, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    """Join an update of one table with the row of the other."""
    is_left = node.side == "left"
    mine, theirs = (node.table, node.other) if is_left else (node.other, node.table)
    other = views.latest(theirs)
    versioned = views.is_versioned(mine)
    needs_other = _needs_other(node)
    joined = _joined(node, needs_other)

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


def _needs_other(node: TableJoin) -> bool:
    """Return whether there is no result without a row on the other side."""
    return node.kind == "inner" or (node.kind == "left" and node.side == "right")


def _joined(node: TableJoin, needs_other: bool) -> Callable[[Any, Any], Any]:  # noqa: FBT001 private
    """Return the function that joins this side's row with the other's; None: no result."""
    joiner = node.joiner
    needs_mine = node.kind == "inner" or (node.kind == "left" and node.side == "left")
    is_left = node.side == "left"

    def joined(mine: Any, other: Any) -> Any:
        if mine is None and (needs_mine or other is None):
            return None
        if other is None and needs_other:
            return None
        return joiner(mine, other) if is_left else joiner(other, mine)

    return joined
