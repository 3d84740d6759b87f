"""Grouped streams and tables: count, reduce and aggregate per key."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, overload

from thulawa.core.callers import topology_error
from thulawa.core.serdes import Serdes
from thulawa.streams import cogrouped, kstream, ktable, windowed
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike, StoreOptions
from thulawa.streams.operator_options import (
    AnySerde,
    Grouped,
    Materialized,
    Repartitioned,
    or_default,
)
from thulawa.streams.type_variables import A, K, V
from thulawa.streams.windowed import StreamAggregations, count_one, reduced_by
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import Aggregate, PartialAggregate, Sink, TableAggregate
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows


class KGroupedStream(StreamAggregations[K, V, K]):
    """A stream grouped by key."""

    def __init__(
        self, stream: "kstream.KStream[K, V]", grouped: Grouped[K, V], *, rekeyed: bool
    ) -> None:
        self.stream = stream
        self.graph = stream.graph
        self.options = grouped
        self.rekeyed = rekeyed
        self.key_serde = grouped.key_serde or stream.key_serde
        self.value_serde = grouped.value_serde or stream.value_serde
        self.grouped = self
        self._source: str | None = None

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        merger: Callable[[K, A, A], A] | None = None,
        named: NameLike = None,
    ) -> "ktable.KTable[K, A]":
        """Fold the values of each key; the aggregator returns a new result, without side effects.

        A ``merger`` merges partial results; ``Grouped(two_step=True)`` requires it.

        >>> def program(s):
        ...     return s.group_by_key().aggregate(lambda: (), lambda k, v, seen: (*seen, v))
        >>> preview(program, ("a", 1), ("a", 2))
        [('a', [1]), ('a', [1, 2])]
        """
        return self._fold(
            "KSTREAM-AGGREGATE-", initializer, aggregator, merger, materialized, named
        )

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows
    ) -> "windowed.TimeWindowedKStream[K, V]": ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> "windowed.SessionWindowedKStream[K, V]": ...

    def windowed_by(self, windows: TimeWindows | SlidingWindows | SessionWindows) -> Any:
        """Group by window too.

        >>> second = TimeWindows.of("1 s")
        >>> preview(lambda s: s.group_by_key().windowed_by(second).count(), ("a", "x", 1500))
        [(Windowed(key='a', window=Window(start=1000, end=2000)), 1)]
        """
        windowed.check_windows(windows)
        if isinstance(windows, SessionWindows):
            return windowed.SessionWindowedKStream(self, windows)
        return windowed.TimeWindowedKStream(self, windows)

    def cogroup(self, aggregator: Callable[[K, V, A], A]) -> "cogrouped.CogroupedKStream[K, A]":
        """Start an aggregation of several streams into one table.

        >>> def balance(paid, spent):
        ...     paid, spent = paid.group_by_key(), spent.group_by_key()
        ...     both = paid.cogroup(lambda k, v, n: n + v).cogroup(spent, lambda k, v, n: n - v)
        ...     return both.aggregate(lambda: 0)
        >>> preview(balance, ("paid", "ann", 10), ("spent", "ann", 3))
        [('ann', 10), ('ann', 7)]
        """
        return cogrouped.CogroupedKStream(self.graph, ((self, aggregator),))

    def repartitioned(self, store: InternalName, materialized: StoreOptions) -> str:
        """Return the parent of the aggregation: behind a repartition if the key has changed."""
        if not self.rekeyed:
            return self.stream.name
        options = self.options
        if options.name is not None and self._source is not None:
            for _ in range(3):
                self.graph.generated("")  # Kafka increments, and reuses the repartition
            return self._source
        self._source = self.stream.repartitioned(
            store.or_own(options.name), options.with_defaults(materialized.key_serde)
        ).name
        return self._source

    def after_first_step(
        self, node: Aggregate, store: InternalName, value_serde: AnySerde
    ) -> Aggregate:
        """Aggregate before the repartition; return the node that merges the partial results."""
        merge, name = node.merge, store.or_own(self.options.name)
        reason = None
        if not self.rekeyed:
            reason = "the key has not changed, so there is no repartition: remove two_step"
        elif node.window is not None:
            reason = "whether a record is late for a window depends on the order of all records"
        elif merge is None:
            reason = "partial results must be merged: pass a merger"
        if merge is None or reason is not None:
            raise topology_error(f"this cannot be aggregated in two steps: {reason}")
        first = PartialAggregate(
            name=f"{name.name}-partial",
            parents=(self.stream.name,),
            initializer=node.initializer,
            aggregator=node.aggregator,
        )
        serdes: Repartitioned[K, Any] = Repartitioned.with_(self.key_serde, value_serde)
        source = self.graph.repartition(self.graph.add(first), name, serdes)

        def merged(key: Any, part: Any, result: Any) -> Any:
            return part if result is None else merge(key, result, part)

        return replace(node, parents=(source,), initializer=None, aggregator=merged)


class KGroupedTable(Generic[K, V]):
    """A table grouped by another key: an update subtracts the old row and adds the new one."""

    def __init__(self, graph: GraphBuilder, name: str, grouped: Grouped[K, V]) -> None:
        if grouped.two_step:
            raise topology_error(
                "a table cannot be aggregated in two steps: its rows are subtracted again when "
                "they change; remove two_step"
            )
        self._graph = graph
        self._name = name
        self._options = grouped
        self._source: str | None = None

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: NameLike = None
    ) -> "ktable.KTable[K, int]":
        """Count the rows of each key.

        >>> def sizes(team_table):
        ...     return team_table.group_by(lambda player, team: (team, player)).count()
        >>> preview(sizes, ("ann", "red"), ("bob", "red"), ("ann", "blue"))
        [('red', 1), ('red', 2), ('red', 1), ('blue', 1)]
        """
        subtract: Callable[..., int] = lambda _key, _value, count: count - 1  # noqa: E731 one line
        serde = None if self._options.key_serde is None else Serdes.long()
        return self._aggregated(
            "KTABLE-AGGREGATE-", lambda: 0, count_one, subtract, materialized, named, serde
        )

    def reduce(
        self,
        adder: Callable[[V, V], V],
        subtractor: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[K, V]":
        """Combine the values of each key: ``adder`` adds a row, ``subtractor`` removes it.

        >>> def total(table):
        ...     rows = table.group_by(lambda k, v: ("all", v))
        ...     return rows.reduce(lambda total, v: total + v, lambda total, v: total - v)
        >>> preview(total, ("a", 5), ("b", 2), ("a", 1))
        [('all', 5), ('all', 7), ('all', 3)]
        """
        check_function(subtractor, "subtractor", ("value", "other value"))
        return self._aggregated(
            "KTABLE-REDUCE-",
            None,
            reduced_by(adder),
            lambda _, value, result: subtractor(result, value),
            materialized,
            named,
            self._options.value_serde,
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A],
        subtractor: Callable[[K, V, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[K, A]":
        """Fold the rows of each key: ``adder`` adds a row, ``subtractor`` removes it.

        >>> def total(table):
        ...     rows = table.group_by(lambda k, v: ("all", v))
        ...     return rows.aggregate(lambda: 0, lambda k, v, n: n + v, lambda k, v, n: n - v)
        >>> preview(total, ("a", 5), ("a", 1))
        [('all', 5), ('all', 1)]
        """
        return self._aggregated(
            "KTABLE-AGGREGATE-", initializer, adder, subtractor, materialized, named
        )

    def _aggregated(
        self,
        prefix: str,
        initializer: Callable[[], Any] | None,
        adder: Callable[..., Any],
        subtractor: Callable[..., Any],
        materialized: Materialized[Any, Any] | None,
        named: NameLike,
        value_serde: AnySerde = None,
    ) -> "ktable.KTable[Any, Any]":
        graph, grouped = self._graph, self._options
        options = or_default(materialized, Materialized)
        store = graph.store_name(options, "KTABLE-AGGREGATE-")
        sink = graph.named(named, "KSTREAM-SINK-", "-sink")
        source = graph.named(named, "KSTREAM-SOURCE-", "-source")
        name = graph.named(named, prefix)
        own_name = store.or_own(grouped.name)
        topic = f"{own_name.name}-repartition"
        if self._source is None or grouped.name is None:
            graph.guard("repartition", InternalName(topic, own_name.chosen))
            key_serde = grouped.key_serde or options.key_serde
            sent = Sink(name=sink, topic=topic, key_serde=key_serde, parents=(self._name,))
            self._source = graph.add_repartition(
                replace(sent, value_serde=grouped.value_serde), source
            )
        graph.add_store(store, options.with_defaults(grouped.key_serde, value_serde))
        graph.add(
            TableAggregate(
                name=name,
                parents=(self._source,),
                stores=(store.name,),
                store=store.name,
                initializer=initializer,
                adder=adder,
                subtractor=subtractor,
            )
        )
        return ktable.KTable(graph, name, *options.serdes(grouped.key_serde, value_serde))
