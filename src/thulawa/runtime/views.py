"""Views: the current rows of a table, with or without a store.

The rows of a table without a store are computed from its parent tables.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from thulawa.state.stores import VersionedStore
from thulawa.topology.nodes import (
    Aggregate,
    GlobalTable,
    Node,
    Suppress,
    Table,
    TableAggregate,
    TableJoin,
)
from thulawa.topology.windows import SessionWindows

# key -> (value, timestamp), or None
View: TypeAlias = Callable[[Any], tuple[Any, int] | None]
# key, (value, timestamp) of the parent table -> (value, timestamp), or None
Row: TypeAlias = Callable[[Any, tuple[Any, int] | None], tuple[Any, int] | None]


class Views:
    """Return the views of table nodes by name."""

    def __init__(self, nodes: Mapping[str, Node], store: Callable[[str], Any]) -> None:
        self._nodes = nodes
        self._store = store  # returns a store by its name
        # by node: the function that computes a row from the parent's, for tables without a store
        self.transformers: dict[str, Row] = {}

    def latest(self, name: str) -> View:
        """Return the view of a table's current rows."""
        node = self._nodes[name]
        match node:
            case GlobalTable(stores=(store,)) | TableAggregate(store=store):
                return self._entries(store)
            case Table(store=str(store)) | Aggregate(store=store, window=None):
                return self._entries(store)
            case Aggregate():
                return self._windowed(node)
            case Suppress():
                return self._suppressed(node)
            case Table():
                above = self._nodes[node.parents[0]]
                if isinstance(above, TableJoin):
                    return self._joined(above)
                parent, row = self.latest(above.name), self._row(node)
                return lambda key: row(key, parent(key))
            case _:
                raise AssertionError(f"{name} is not a table")

    def as_of(self, name: str) -> Callable[[Any, int], tuple[Any, int] | None] | None:
        """Return the view of a versioned table as of a time; None if it is not versioned."""
        node = self._nodes[name]
        if not isinstance(node, Table):
            return None
        if node.store is not None:
            store = self._store(node.store)
            return store.as_of if isinstance(store, VersionedStore) else None
        if node.operation == "source" or len(node.parents) != 1:
            return None
        parent = self.as_of(node.parents[0])
        if parent is None:
            return None
        row = self._row(node)
        return lambda key, timestamp: row(key, parent(key, timestamp))

    def is_versioned(self, name: str) -> bool:
        """Return whether a table is versioned, so that its changes may not be the latest."""
        node = self._nodes[name]
        if not isinstance(node, Table):
            return False
        if node.store is not None or node.operation in ("source", "pass"):
            return node.versioned
        return self.is_versioned(node.parents[0])

    def _entries(self, store: str) -> View:
        view: View = self._store(store).entry
        return view

    def _windowed(self, node: Aggregate) -> View:
        store = self._store(node.store)
        if not isinstance(node.window, SessionWindows):
            return lambda windowed: store.fetch(windowed.key, windowed.window.start)

        def session(windowed: Any) -> tuple[Any, int] | None:
            value = store.fetch(windowed.key, windowed.window)
            return None if value is None else (value, windowed.window.end)

        return session

    def _suppressed(self, node: Suppress) -> View:
        buffer = self._store(node.store)
        identity_of = buffer.keys.identity
        parent = self.latest(node.table)

        def view(key: Any) -> tuple[Any, int] | None:
            held = buffer.get(identity_of(key))
            if held is None:
                return parent(key)
            prior = held[1]
            return None if prior is None else (prior, -1)

        return view

    def _joined(self, side: TableJoin) -> View:
        left, right = self.latest(side.table), self.latest(side.other)
        joiner, kind = side.joiner, side.kind

        def view(key: Any) -> tuple[Any, int] | None:
            a, b = left(key), right(key)
            if (a is None and kind != "outer") or (b is None and kind == "inner"):
                return None
            if a is None and b is None:
                return None
            value = joiner(a and a[0], b and b[0])
            return None if value is None else (value, max(a[1] if a else -1, b[1] if b else -1))

        return view

    def _row(self, node: Table) -> Row:
        if node.supplier is not None:
            # child nodes are built before the transformer
            return lambda key, entry: self.transformers[node.name](key, entry)  # noqa: PLW0108
        function = row_function(node)

        def row(key: Any, entry: tuple[Any, int] | None) -> tuple[Any, int] | None:
            value = None if entry is None else function(key, entry[0])
            return None if entry is None or value is None else (value, entry[1])

        return row


def row_function(node: Table) -> Callable[[Any, Any], Any]:
    """Return the function of a table node for one row; None: there is no row."""
    function = node.function
    if function is None:
        return lambda _, value: value
    if node.operation == "filter":
        return lambda key, value: value if value is not None and function(key, value) else None
    if node.operation == "filter_not":
        return lambda key, value: None if value is None or function(key, value) else value
    if node.with_key:
        return lambda key, value: None if value is None else function(key, value)
    return lambda _, value: None if value is None else function(value)
