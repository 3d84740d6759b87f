"""KTable: the current value of each key, as a sequence of updates; and global tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, overload

from thulawa.core.callers import accepts, caller
from thulawa.core.serdes import Serde
from thulawa.errors import TopologyError
from thulawa.streams import foreign_key_joins, kstream
from thulawa.streams import grouped as grouping
from thulawa.streams.graph_builder import GraphBuilder, NameLike, StoreName
from thulawa.streams.operator_options import Grouped, Materialized, TableJoined, or_default
from thulawa.streams.suppressed import Suppressed
from thulawa.topology.nodes import (
    Aggregate,
    Stateless,
    Suppress,
    Table,
    TableGrouping,
    TableJoin,
)
from thulawa.topology.processor import ValueTransformer
from thulawa.topology.windows import SessionWindows

__all__ = ["GlobalKTable", "KTable", "serdes_of"]

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
V1 = TypeVar("V1")
V2 = TypeVar("V2")


class GlobalKTable(Generic[K, V]):
    """A table of a whole topic in every task, which streams join by any key."""

    def __init__(self, graph: GraphBuilder, name: str, store: str) -> None:
        self.graph = graph
        self.name = name
        self.store = store


class KTable(Generic[K, V]):
    """A table: each record is an update, None removes a row.

    >>> from thulawa.streams.streams_builder import StreamsBuilder
    >>> from thulawa.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> builder.table("prices").filter(lambda k, v: v > 9).to_stream().to("dear")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     prices = driver.create_input_topic("prices")
    ...     prices.pipe_key_value_list([("tea", 12), ("tea", 3)])
    ...     driver.create_output_topic("dear").read_key_values_to_list()
    [('tea', 12), ('tea', None)]
    """

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> None:
        self.graph = graph
        self.name = name
        self.key_serde = key_serde
        self.value_serde = value_serde

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

        >>> from thulawa.testing import preview
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

        >>> from thulawa.testing import preview
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

        >>> from thulawa.testing import preview
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

        >>> from thulawa.testing import preview
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

        >>> from thulawa.testing import preview
        >>> how = Suppressed.until_time_limit(10)
        >>> preview(lambda table: table.suppress(how), ("a", 1, 0), ("a", 2, 5), ("b", 3, 10))
        [('a', 2)]
        """
        if not isinstance(suppressed, Suppressed):
            raise TopologyError(f"suppress needs a Suppressed, not {suppressed!r}", where=caller())
        if self.versioned:
            raise TopologyError("a versioned table cannot be suppressed", where=caller())
        graph = self.graph
        name = graph.name_or_generated(suppressed.name, "KTABLE-SUPPRESS-")
        given = suppressed.name is not None
        store = f"{name}-store" if given else graph.generated("KTABLE-SUPPRESS-STATE-STORE-")
        wait = suppressed.wait
        if suppressed.until == "window_close":
            wait = self._grace()
        parent_stores = graph.stores_of(self.name)
        graph.send_old_values(self.name, force=True)
        kept: Materialized[Any, Any] = Materialized.with_(None, self.value_serde)
        graph.add_store(StoreName(store, given), "buffer", kept)
        assert parent_stores, "suppression reads its parent table"
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

        >>> from thulawa.testing import preview
        >>> preview(lambda table: table.to_stream(lambda k, v: v), ("a", 1))
        [(1, 1)]
        """
        name = self.graph.named(named, "KTABLE-TOSTREAM-")
        self.graph.add(Stateless(name=name, parents=(self.name,), operation="to_stream"))
        stream: kstream.KStream[K, V] = kstream.KStream(
            self.graph, name, key_serde=self.key_serde, value_serde=self.value_serde
        )
        return stream if mapper is None else stream.select_key(mapper)

    def group_by(
        self,
        selector: Callable[[K, V], tuple[K1, V1]],
        grouped: Grouped[K1, V1] | None = None,
    ) -> "grouping.KGroupedTable[K1, V1]":
        """Group the rows by another key.

        >>> from thulawa.testing import preview
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

        >>> from thulawa.testing import preview
        >>> preview(
        ...     lambda a_table, b_table: a_table.join(b_table, lambda a, b: a + b),
        ...     ("a_table", "k", "A"),
        ...     ("b_table", "k", "B"),
        ... )
        [('k', 'AB')]
        >>> preview(
        ...     lambda orders_table, users_table: orders_table.join(
        ...         users_table, lambda order, user: (order, user), foreign_key=lambda order: order
        ...     ),
        ...     ("users_table", "ann", "Ann A."),
        ...     ("orders_table", 1, "ann"),
        ... )
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

        >>> from thulawa.testing import preview
        >>> preview(
        ...     lambda a_table, b_table: a_table.left_join(b_table, lambda a, b: (a, b)),
        ...     ("a_table", "k", "A"),
        ... )
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

        >>> from thulawa.testing import preview
        >>> preview(
        ...     lambda a_table, b_table: a_table.outer_join(b_table, lambda a, b: (a, b)),
        ...     ("b_table", "k", "B"),
        ... )
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
            raise TopologyError(
                f"a table joins a KTable, not a {type(other).__name__}", where=caller()
            )
        if other.graph is not self.graph:
            raise TopologyError("both must come from one StreamsBuilder", where=caller())
        if foreign_key is not None:
            return foreign_key_joins.join(
                self, other, joiner, foreign_key, materialized, named, left_join=kind == "left"
            )
        graph = self.graph
        store = None if materialized is None else graph.store_name(materialized, "KTABLE-MERGE-")
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
        if store is not None:
            graph.add_store(store, materialized=materialized)
        graph.add(
            Table(
                name=merged,
                parents=(this, that),
                stores=() if store is None else (store.name,),
                operation="pass",
                store=None if store is None else store.name,
                versioned=materialized is not None and materialized.history is not None,
            )
        )
        return KTable(graph, merged, *serdes_of(materialized, self.key_serde))

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
        store = self._store(materialized, prefix)
        name = self.graph.named(named, prefix)
        versioned = self.versioned if materialized is None else materialized.history is not None
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
        serdes = serdes_of(materialized, self.key_serde, value_serde)
        return KTable(self.graph, name, *serdes)

    def _store(self, materialized: Materialized[Any, Any] | None, prefix: str) -> str | None:
        """Add the store of a derived table if the user named one; return its name."""
        if materialized is None:
            return None
        name = self.graph.store_name(materialized, prefix)
        if not name.chosen:
            return None
        self.graph.add_store(name, materialized=materialized)
        return name.name

    def _grace(self) -> int:
        """Return how long the windows of this table stay open after their end."""
        node = self.graph.topology.node(self.name)
        while not isinstance(node, Aggregate):
            if not isinstance(node, Table) or not node.parents:
                raise TopologyError(
                    "until_window_closes needs a windowed table; "
                    "for others there is Suppressed.until_time_limit",
                    where=caller(),
                )
            node = self.graph.topology.node(node.parents[0])
        if node.window is None:
            raise TopologyError("until_window_closes needs a windowed aggregation", where=caller())
        gap = node.window.gap if isinstance(node.window, SessionWindows) else 0
        return node.window.grace + gap


def serdes_of(
    materialized: Materialized[Any, Any] | None,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None = None,
) -> tuple[Serde[Any] | None, Serde[Any] | None]:
    """Return the serdes of ``materialized``, with these defaults."""
    if materialized is None:
        return key_serde, value_serde
    return materialized.key_serde or key_serde, materialized.value_serde or value_serde
