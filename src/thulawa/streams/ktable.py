"""KTable: the current value of each key, as a sequence of updates; and global tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, overload

from thulawa.core.callers import accepts, topology_error
from thulawa.streams import foreign_key_joins, kstream
from thulawa.streams import grouped as grouping
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike, StreamOrTable
from thulawa.streams.operator_options import (
    Grouped,
    Materialized,
    Suppressed,
    TableJoined,
    or_default,
)
from thulawa.streams.type_variables import K1, V1, V2, K, V
from thulawa.topology.nodes import Aggregate, Stateless, Suppress, Table, TableGrouping, TableJoin
from thulawa.topology.processor import ValueTransformer
from thulawa.topology.windows import SessionWindows


class GlobalKTable(Generic[K, V]):
    """A table of a whole topic in every task, which streams join by any key."""

    def __init__(self, graph: GraphBuilder, name: str, store: str) -> None:
        self.graph = graph
        self.name = name
        self.store = store


class KTable(StreamOrTable[K, V]):
    """A table: each record is an update, None removes a row."""

    @property
    def store(self) -> str | None:
        """The name of the table's store, if it has one of its own."""
        node = self.graph.topology.node(self.name)
        return getattr(node, "store", None)

    @property
    def versioned(self) -> bool:
        """Whether the table has a versioned store."""
        node = self.graph.topology.node(self.name)
        return isinstance(node, Table) and node.versioned

    # --- row by row

    def filter(
        self,
        predicate: Callable[[K, V], object],
        materialized: Materialized[K, V] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which the predicate is true.

        >>> preview(lambda table: table.filter(lambda k, v: v > 1), ("a", 2), ("a", 1))
        [('a', 2), ('a', None)]
        """
        return self._derive("filter", "KTABLE-FILTER-", predicate, materialized, named)

    def filter_not(
        self,
        predicate: Callable[[K, V], object],
        materialized: Materialized[K, V] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V]":
        """Keep the rows for which the predicate is false.

        >>> preview(lambda table: table.filter_not(lambda k, v: v > 1), ("a", 1))
        [('a', 1)]
        """
        return self._derive("filter_not", "KTABLE-FILTER-", predicate, materialized, named)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V1],
        materialized: Materialized[K, V1] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V1]": ...

    @overload
    def map_values(
        self,
        mapper: Callable[[K, V], V1],
        materialized: Materialized[K, V1] | None = None,
        *,
        with_key: Literal[True],
        named: NameLike = None,
    ) -> "KTable[K, V1]": ...

    def map_values(
        self,
        mapper: Callable[..., Any],
        materialized: Materialized[K, Any] | None = None,
        *,
        with_key: bool = False,
        named: NameLike = None,
    ) -> "KTable[K, Any]":
        """Map the value of each row to another.

        >>> preview(lambda table: table.map_values(len), ("a", "tea"), ("a", None))
        [('a', 3), ('a', None)]
        """
        return self._derive(
            "map_values", "KTABLE-MAPVALUES-", mapper, materialized, named, with_key=with_key
        )

    def transform_values(
        self,
        transformer: Callable[[K, V], V1] | Callable[[], ValueTransformer[K, V, V1]],
        materialized: Materialized[K, V1] | None = None,
        *stores: str,
        named: NameLike = None,
    ) -> "KTable[K, V1]":
        """Map the value of each row, by a function or by a transformer with stores.

        A `ValueTransformer` is also called for removed rows. If the resulting table has no store,
        it is called again when a join reads a row or a child node needs the old row, as in Kafka:
        name a store with ``materialized`` if it is not deterministic.

        >>> preview(lambda table: table.transform_values(lambda k, v: k + v), ("a", "b"))
        [('a', 'ab')]
        >>> from thulawa.streams import Materialized, ValueTransformer
        >>> class Rise(ValueTransformer):
        ...     last = 0
        ...
        ...     def transform(self, key, value):
        ...         rise, self.last = value - self.last, value
        ...         return rise
        >>> kept = Materialized.as_("rises")
        >>> preview(lambda table: table.transform_values(Rise, kept), ("a", 3), ("a", 7))
        [('a', 3), ('a', 4)]
        """
        self.graph.check_stores(stores)
        is_class = isinstance(transformer, type) and issubclass(transformer, ValueTransformer)
        supplied = is_class or (accepts(transformer, 0) and not accepts(transformer, 2))
        return self._derive(
            "transform_values",
            "KTABLE-TRANSFORMVALUES-",
            transformer,
            materialized,
            named,
            with_key=True,
            supplied=supplied or bool(stores),
            connected=stores,
        )

    def suppress(self, suppressed: Suppressed) -> "KTable[K, V]":
        """Hold updates, and emit only the last one of each key.

        >>> how = Suppressed.until_time_limit(10)
        >>> preview(lambda table: table.suppress(how), ("a", 1, 0), ("a", 2, 5), ("b", 3, 10))
        [('a', 2)]
        """
        if not isinstance(suppressed, Suppressed):
            raise topology_error(f"suppress needs a Suppressed, not {suppressed!r}")
        if self.versioned:
            raise topology_error("a versioned table cannot be suppressed")
        graph = self.graph
        name = graph.name_or_generated(suppressed.name, "KTABLE-SUPPRESS-")
        given = suppressed.name is not None
        store = f"{name}-store" if given else graph.generated("KTABLE-SUPPRESS-STATE-STORE-")
        wait = self._grace() if suppressed.until == "window_close" else suppressed.wait
        graph.stores_of(self.name)  # materializes the table, whose old rows are read
        graph.send_old_values(self.name, force=True)
        graph.add_store(
            InternalName(store, given), Materialized.with_(None, self.value_serde), "buffer"
        )
        graph.add(
            Suppress(
                name=name,
                parents=(self.name,),
                stores=(store,),
                store=store,
                table=self.name,
                until=suppressed.until,
                wait=wait,
                max_records=suppressed.max_records,
                max_bytes=suppressed.max_bytes,
                when_full=suppressed.when_full,
            )
        )
        return KTable(graph, name, self.key_serde, self.value_serde)

    # --- to streams and groups

    def to_stream(
        self, mapper: Callable[[K, V | None], Any] | None = None, *, named: NameLike = None
    ) -> "kstream.KStream[K, V]":
        """Return the updates as a stream; ``mapper`` changes the keys.

        >>> preview(lambda table: table.to_stream(lambda k, v: v), ("a", 1))
        [(1, 1)]
        """
        name = self.graph.named(named, "KTABLE-TOSTREAM-")
        self.graph.add(Stateless(name=name, parents=(self.name,), operation="to_stream"))
        stream = kstream.KStream[K, V](self.graph, name, self.key_serde, self.value_serde)
        return stream if mapper is None else stream.select_key(mapper)

    def group_by(
        self,
        selector: Callable[[K, V], tuple[K1, V1]],
        grouped: Grouped[K1, V1] | None = None,
    ) -> "grouping.KGroupedTable[K1, V1]":
        """Group the rows by another key.

        >>> preview(lambda table: table.group_by(lambda k, v: (v, k)).count(), ("ann", "red"))
        [('red', 1)]
        """
        options = or_default(grouped, Grouped)
        name = self.graph.named(options, "KTABLE-SELECT-")
        self.graph.add(TableGrouping(name=name, parents=(self.name,), selector=selector))
        self.graph.stores_of(self.name)
        self.graph.send_old_values(self.name, force=True)
        return grouping.KGroupedTable(self.graph, name, options)

    # --- joins

    @overload
    def join(
        self,
        other: "KTable[K, V1]",
        joiner: Callable[[V, V1], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V2]": ...

    @overload
    def join(
        self,
        other: "KTable[K1, V1]",
        joiner: Callable[[V, V1], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key: Callable[[V], K1 | None],
        named: NameLike | TableJoined = None,
    ) -> "KTable[K, V2]": ...

    def join(
        self,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        materialized: Materialized[K, Any] | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        named: NameLike = None,
    ) -> "KTable[K, Any]":
        """Join with another table by key, or by a foreign key computed from the value.

        >>> def by_key(a_table, b_table):
        ...     return a_table.join(b_table, lambda a, b: a + b)
        >>> preview(by_key, ("a_table", "k", "A"), ("b_table", "k", "B"))
        [('k', 'AB')]
        >>> def by_user(orders_table, users_table):
        ...     return orders_table.join(users_table, lambda a, b: (a, b), foreign_key=str)
        >>> preview(by_user, ("users_table", "ann", "Ann A."), ("orders_table", 1, "ann"))
        [(1, ['ann', 'Ann A.'])]
        """
        return self._join("inner", other, joiner, materialized, foreign_key, named)

    @overload
    def left_join(
        self,
        other: "KTable[K, V1]",
        joiner: Callable[[V, V1 | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V2]": ...

    @overload
    def left_join(
        self,
        other: "KTable[K1, V1]",
        joiner: Callable[[V, V1 | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        foreign_key: Callable[[V], K1 | None],
        named: NameLike | TableJoined = None,
    ) -> "KTable[K, V2]": ...

    def left_join(
        self,
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        materialized: Materialized[K, Any] | None = None,
        *,
        foreign_key: Callable[..., Any] | None = None,
        named: NameLike = None,
    ) -> "KTable[K, Any]":
        """Join like `join`; a row without a match is joined with None.

        >>> def program(a_table, b_table):
        ...     return a_table.left_join(b_table, lambda a, b: (a, b))
        >>> preview(program, ("a_table", "k", "A"))
        [('k', ['A', None])]
        """
        return self._join("left", other, joiner, materialized, foreign_key, named)

    def outer_join(
        self,
        other: "KTable[K, V1]",
        joiner: Callable[[V | None, V1 | None], V2],
        materialized: Materialized[K, V2] | None = None,
        *,
        named: NameLike = None,
    ) -> "KTable[K, V2]":
        """Join like `join`; a row of either side without a match is joined with None.

        >>> def program(a_table, b_table):
        ...     return a_table.outer_join(b_table, lambda a, b: (a, b))
        >>> preview(program, ("b_table", "k", "B"))
        [('k', [None, 'B'])]
        """
        return self._join("outer", other, joiner, materialized, None, named)

    def _join(
        self,
        kind: Literal["inner", "left", "outer"],
        other: "KTable[Any, Any]",
        joiner: Callable[..., Any],
        materialized: Materialized[K, Any] | None,
        foreign_key: Callable[..., Any] | None,
        named: NameLike,
    ) -> "KTable[K, Any]":
        if not isinstance(other, KTable):
            raise topology_error(f"a table joins a KTable, not a {type(other).__name__}")
        self.graph.check_same_builder(other.graph)
        if foreign_key is not None:
            return foreign_key_joins.join(
                self, other, joiner, foreign_key, materialized, named, left_join=kind == "left"
            )
        graph, options = self.graph, or_default(materialized, Materialized)
        store = None if materialized is None else graph.store_name(options, "KTABLE-MERGE-")
        merged = graph.named(named, "KTABLE-MERGE-")
        this = graph.named(named, "KTABLE-JOINTHIS-", "-join-this")
        that = graph.named(named, "KTABLE-JOINOTHER-", "-join-other")
        if kind != "inner":
            graph.send_old_values(self.name, force=True)
        if kind == "outer":
            graph.send_old_values(other.name, force=True)
        mine, theirs = graph.stores_of(self.name), graph.stores_of(other.name)
        left = TableJoin(
            name=this,
            parents=(self.name,),
            stores=theirs,
            side="left",
            kind=kind,
            table=self.name,
            other=other.name,
            joiner=joiner,
        )
        graph.add(left)
        graph.add(replace(left, name=that, parents=(other.name,), stores=mine, side="right"))
        table = Table(name=merged, parents=(this, that), operation="pass")
        if store is not None:
            graph.add_store(store, options)
            versioned = options.history is not None
            table = replace(table, stores=(store.name,), store=store.name, versioned=versioned)
        graph.add(table)
        return KTable(graph, merged, *options.serdes(self.key_serde))

    def _derive(
        self,
        operation: Any,
        prefix: str,
        function: Callable[..., Any],
        materialized: Materialized[K, Any] | None,
        named: NameLike,
        *,
        with_key: bool = False,
        supplied: bool = False,
        connected: tuple[str, ...] = (),
    ) -> "KTable[K, Any]":
        options = or_default(materialized, Materialized)
        store = None
        if materialized is not None:
            store_name = self.graph.store_name(options, prefix)
            if store_name.chosen:
                self.graph.add_store(store_name, options)
                store = store_name.name
        name = self.graph.named(named, prefix)
        versioned = self.versioned if materialized is None else options.history is not None
        is_filter = operation.startswith("filter")
        old = is_filter and self.graph.send_old_values(self.name, force=False)
        self.graph.add(
            Table(
                name=name,
                parents=(self.name,),
                stores=connected if store is None else (store, *connected),
                operation=operation,
                function=None if supplied else function,
                with_key=with_key,
                store=store,
                versioned=versioned,
                supplier=function if supplied else None,
                sends_old_values=old,
            )
        )
        value_serde = self.value_serde if is_filter else None
        return KTable(self.graph, name, *options.serdes(self.key_serde, value_serde))

    def _grace(self) -> int:
        """Return how long the windows of this table stay open after their end."""
        node = self.graph.topology.node(self.name)
        while not isinstance(node, Aggregate):
            if not isinstance(node, Table) or not node.parents:
                raise topology_error(
                    "until_window_closes needs a windowed table; "
                    "for others there is Suppressed.until_time_limit"
                )
            node = self.graph.topology.node(node.parents[0])
        if node.window is None:
            raise topology_error("until_window_closes needs a windowed aggregation")
        gap = node.window.gap if isinstance(node.window, SessionWindows) else 0
        return node.window.grace + gap
