"""Tables: updates as changes (new and old value), materialized if they have a store; suppression.

A filter that knows old values drops updates without a row before and after. Other tables forward
them.
"""

from collections.abc import Callable
from typing import Any

from thulawa.core.records import Change, Headers
from thulawa.errors import ProcessingError
from thulawa.runtime.context import NO_TIME, Forward, Wiring
from thulawa.runtime.processors import ContextProxy, NodeContext
from thulawa.runtime.views import row_function
from thulawa.state.key_identity import Keys
from thulawa.state.stores import TimeOrderedBuffer
from thulawa.topology.nodes import Suppress, Table, TableAggregate, TableGrouping


def table(node: Table, wiring: Wiring) -> Forward:
    """Return the function of a table node."""
    if node.supplier is not None:
        return _transformed(node, node.supplier(), wiring)
    if node.operation == "source":
        return _source(node, wiring)
    if node.operation == "pass" and node.store is None:
        return wiring.forward
    return _derived(node, wiring, row_function(node))


def _transformed(node: Table, transformer: Any, wiring: Wiring) -> Forward:
    """Initialize the transformer of a table; return the table's function."""
    rows = _RowContext(NodeContext(node, wiring))
    transformer.init(rows)
    wiring.closers.append(transformer.close)
    update = _derived(node, wiring, transformer.transform)

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        rows.timestamp = timestamp
        update(key, change, timestamp, headers)

    def read(key: Any, entry: tuple[Any, int] | None) -> tuple[Any, int] | None:
        before = rows.timestamp
        value, rows.timestamp = (None, NO_TIME) if entry is None else entry
        try:
            result = transformer.transform(key, value)
        finally:
            time, rows.timestamp = rows.timestamp, before
        return None if result is None else (result, time)

    wiring.context.views.transformers[node.name] = read
    return process


class _RowContext(ContextProxy):
    """The context of a transformer, which can neither forward nor schedule."""

    timestamp = NO_TIME

    def __getattr__(self, name: str) -> Any:
        if name in ("forward", "schedule"):
            raise self._context.error(
                f"a table's transformer cannot {name}: return the row, or use process"
            )
        return super().__getattr__(name)


def _source(node: Table, wiring: Wiring) -> Forward:
    context, forward = wiring.context, wiring.forward
    if node.store is None:

        def pass_on(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None:
                context.drop(node.name)
            else:
                forward(key, Change(value, None), timestamp, headers)

        return pass_on
    store = context.store(node.store)
    entry_of, put = store.entry, store.put

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return context.drop(node.name)
        entry = entry_of(key)
        latest = put(key, value, timestamp)
        if latest is None:
            return context.drop(node.name, "late")
        old = None if entry is None else entry[0]
        return forward(key, Change(value, old, latest), timestamp, headers)

    return process


def _derived(node: Table, wiring: Wiring, row: Callable[[Any, Any], Any]) -> Forward:
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    store = None if node.store is None else context.store(node.store)
    is_filter = node.operation.startswith("filter")
    versioned = context.views.is_versioned(node.parents[0])
    quiet = is_filter and node.sends_old_values and not versioned
    # a transformer may return something else now, so it computes old rows only if needed
    computes_old = node.supplier is None or node.sends_old_values

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        try:
            new = row(key, change.new)
            if store is not None:
                old = store.get(key)
            else:
                old = row(key, change.old) if computes_old else None
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        if quiet and new is None and old is None:
            return None
        latest = change.latest if store is None else store.put(key, new, timestamp)
        if latest is None:
            return context.drop(node.name, "late")
        return forward(key, Change(new, old, latest), timestamp, headers)

    return process


def table_grouping(node: TableGrouping, wiring: Wiring) -> Forward:
    """Forward an update under the keys of its new and its old row."""
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    selector, identity_of = node.selector, Keys(node.key_serde).identity
    versioned = context.views.is_versioned(node.parents[0])

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (versioned and not change.latest):
            return context.drop(node.name)
        try:
            new_key, new = (None, None) if change.new is None else selector(key, change.new)
            old_key, old = (None, None) if change.old is None else selector(key, change.old)
            same = identity_of(new_key) == identity_of(old_key)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        has_new = new_key is not None and new is not None
        has_old = old_key is not None and old is not None
        if has_new and has_old and same:
            return forward(new_key, Change(new, old, change.latest), timestamp, headers)
        if has_old:
            forward(old_key, Change(None, old, change.latest), timestamp, headers)
        if has_new:
            forward(new_key, Change(new, None, change.latest), timestamp, headers)
        return None

    return process


def table_aggregate(node: TableAggregate, wiring: Wiring) -> Forward:
    """Subtract the old row from the aggregate, then add the new one."""
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    store = context.store(node.store)
    initial = node.initializer or (lambda: None)
    add, subtract = node.adder, node.subtractor

    def process(key: Any, change: Change, timestamp: int, headers: Headers) -> None:
        if key is None:
            return context.drop(node.name)
        time = timestamp
        try:
            entry = store.entry(key)
            new = old = None if entry is None else entry[0]
            if change.old is not None and old is not None:
                new = subtract(key, change.old, old)
                time = max(timestamp, entry[1])
            if change.new is not None:
                new = add(key, change.new, initial() if new is None else new)
                if entry is not None:
                    time = max(timestamp, entry[1])
            latest = store.put(key, new, time)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, change.new, timestamp, headers)
        if latest is None:
            return context.drop(node.name, "late")
        return forward(key, Change(new, old, latest), time, headers)

    return process


def suppress(node: Suppress, wiring: Wiring) -> Forward:
    """Hold updates until their window closes, the time limit expires, or the buffer is exceeded.

    Time is the highest timestamp of the node's updates. The old value of an emitted change is the
    one that was last emitted, since child nodes have seen no other.
    """
    context, forward = wiring.context, wiring.forward
    buffer: TimeOrderedBuffer = context.store(node.store)
    clock = context.clock(node.store)
    final = node.until == "window_close"
    keys, max_records, max_bytes = buffer.keys, node.max_records, node.max_bytes

    def exceeded() -> bool:
        if max_records is not None and len(buffer) > max_records:
            return True
        if max_bytes is None:
            return False
        size = sum(8 + len(repr(key)) + len(repr(buffer.get(key))) for _, key in buffer)
        return size > max_bytes

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
        while exceeded():
            if node.when_full == "fail":
                raise ProcessingError(
                    f"the suppression buffer is full with {len(buffer)} records: raise its bounds, "
                    "or emit early",
                    node=node.name,
                )
            emit_first()

    return process
