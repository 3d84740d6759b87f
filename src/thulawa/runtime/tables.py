"""Tables: updates as changes (new and old value), materialized if they have a store.

A filter that knows old values drops updates without a row before and after. Other tables forward
them.
"""

from collections.abc import Callable
from typing import Any

from thulawa.core.records import Change, Headers
from thulawa.errors import ProcessingError
from thulawa.runtime.context import NO_TIME, Failed, Forward, TaskContext
from thulawa.runtime.processors import NodeContext
from thulawa.runtime.views import Views, row_function
from thulawa.state.key_identity import Keys
from thulawa.topology.nodes import Table, TableAggregate, TableGrouping


def transformed_table(
    node: Table,
    own: NodeContext,
    context: TaskContext,
    views: Views,
    forward: Forward,
    failed: Failed,
    closers: list[Callable[[], None]],
) -> Forward:
    """Create and initialize the transformer of a table; return the table's function."""
    assert node.supplier is not None
    transformer = node.supplier()
    rows = _RowContext(own, node.name)
    transformer.init(rows)
    closers.append(transformer.close)
    update = _derived(node, context, views, forward, failed, transformer.transform)

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

    views.transformers[node.name] = read
    return process


class _RowContext:
    """The context of a transformer, which can neither forward nor schedule."""

    def __init__(self, context: NodeContext, node: str) -> None:
        self._context = context
        self._node = node
        self.timestamp = NO_TIME

    def __getattr__(self, name: str) -> Any:
        if name in ("forward", "schedule"):
            raise ProcessingError(
                f"a table's transformer cannot {name}: return the row, or use process",
                node=self._node,
            )
        return getattr(self._context, name)


def table(
    node: Table, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    """Return the function of a table node."""
    if node.operation == "source":
        return _source(node, context, forward)
    if node.operation == "pass" and node.store is None:
        return forward
    return _derived(node, context, views, forward, failed, row_function(node))


def _source(node: Table, context: TaskContext, forward: Forward) -> Forward:
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


def _derived(
    node: Table,
    context: TaskContext,
    views: Views,
    forward: Forward,
    failed: Failed,
    row: Callable[[Any, Any], Any],
) -> Forward:
    store = None if node.store is None else context.store(node.store)
    is_filter = node.operation.startswith("filter")
    quiet = is_filter and node.sends_old_values and not views.is_versioned(node.parents[0])
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


def table_grouping(
    node: TableGrouping, context: TaskContext, views: Views, forward: Forward, failed: Failed
) -> Forward:
    """Forward an update under the keys of its new and its old row."""
    selector = node.selector
    identity_of = Keys(node.key_serde).identity
    versioned = views.is_versioned(node.parents[0])

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


def table_aggregate(
    node: TableAggregate, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Subtract the old row from the aggregate, then add the new one."""
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
