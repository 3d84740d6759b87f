"""Cogroups: aggregate several grouped streams into one table, each by its own aggregator."""

from collections.abc import Callable
from typing import Any, Generic

from thulawa.core.callers import topology_error
from thulawa.core.records import Windowed
from thulawa.errors import ConfigurationError
from thulawa.streams import grouped as grouping
from thulawa.streams import ktable, windowed
from thulawa.streams.graph_builder import GraphBuilder, NameLike
from thulawa.streams.operator_options import Materialized, or_default
from thulawa.streams.type_variables import A, K, V
from thulawa.topology.nodes import Aggregate, Table, WindowKind
from thulawa.topology.windows import SessionWindows

_Part = tuple["grouping.KGroupedStream[Any, Any]", Callable[..., Any]]


class CogroupedKStream(Generic[K, A]):
    """Streams that are aggregated together."""

    def __init__(self, graph: GraphBuilder, parts: tuple[_Part, ...]) -> None:
        self._graph = graph
        self._parts = parts

    def cogroup(
        self, grouped: "grouping.KGroupedStream[K, V]", aggregator: Callable[[K, V, A], A]
    ) -> "CogroupedKStream[K, A]":
        """Add a stream and its aggregator.

        >>> def balance(paid, spent):
        ...     paid, spent = paid.group_by_key(), spent.group_by_key()
        ...     both = paid.cogroup(lambda k, v, n: n + v).cogroup(spent, lambda k, v, n: n - v)
        ...     return both.aggregate(lambda: 0)
        >>> preview(balance, ("paid", "ann", 10), ("spent", "ann", 3))
        [('ann', 10), ('ann', 7)]
        """
        if not isinstance(grouped, grouping.KGroupedStream):
            raise topology_error(
                f"cogroup needs a KGroupedStream, not a {type(grouped).__name__}: group it first"
            )
        return CogroupedKStream(self._graph, (*self._parts, (grouped, aggregator)))

    def aggregate(
        self,
        initializer: Callable[[], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[K, A]":
        """Fold the values of each key, of all streams.

        >>> def total(s):
        ...     return s.group_by_key().cogroup(lambda k, v, n: n + v).aggregate(lambda: 0)
        >>> preview(total, ("k", 2))
        [('k', 2)]
        """
        return _aggregated(self._graph, self._parts, initializer, materialized, named)

    def windowed_by(self, windows: WindowKind) -> "WindowedCogroupedKStream[K, A]":
        """Group by window too.

        >>> from thulawa.streams import TimeWindows
        >>> def program(s):
        ...     totals = s.group_by_key().cogroup(lambda k, v, total: total + v)
        ...     table = totals.windowed_by(TimeWindows.of(10)).aggregate(lambda: 0)
        ...     return table.to_stream(lambda w, total: w.window.start)
        >>> preview(program, ("k", 2, 15))
        [(10, 2)]
        """
        windowed.check_windows(windows)
        return WindowedCogroupedKStream(self._graph, self._parts, windows)


class WindowedCogroupedKStream(Generic[K, A]):
    """Streams that are aggregated together, per window."""

    def __init__(self, graph: GraphBuilder, parts: tuple[_Part, ...], windows: WindowKind) -> None:
        self._graph = graph
        self._parts = parts
        self._windows = windows

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A] | None = None,
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[Windowed[K], A]":
        """Fold the values of each key and window; sessions need a merger.

        >>> def program(s):
        ...     totals = s.group_by_key().cogroup(lambda k, v, total: total + v)
        ...     sessions = totals.windowed_by(SessionWindows.of(10))
        ...     return sessions.aggregate(lambda: 0, lambda k, one, other: one + other)
        >>> preview(program, ("k", 2, 15))
        [(Windowed(key='k', window=Window(start=15, end=15)), 2)]
        """
        if isinstance(self._windows, SessionWindows) and merger is None:
            raise ConfigurationError("sessions need a merger: a record may merge two of them")
        return _aggregated(
            self._graph, self._parts, initializer, materialized, named, self._windows, merger
        )


def _aggregated(
    graph: GraphBuilder,
    parts: tuple[_Part, ...],
    initializer: Callable[[], Any],
    materialized: Materialized[Any, Any] | None,
    named: NameLike,
    window: WindowKind | None = None,
    merge: Callable[..., Any] | None = None,
) -> "ktable.KTable[Any, Any]":
    if any(grouped.options.two_step for grouped, _ in parts):
        raise topology_error("a cogroup cannot be aggregated in two steps: remove two_step")
    key_serde = next((grouped.key_serde for grouped, _ in parts if grouped.key_serde), None)
    options = or_default(materialized, Materialized).with_defaults(key_serde)
    store = graph.store_name(options, "COGROUPKSTREAM-AGGREGATE-")
    parents = [grouped.repartitioned(store, options) for grouped, _ in parts]
    windowed.add_aggregate_store(graph, store, options, window)
    names = []
    for number, (parent, (_, aggregator)) in enumerate(zip(parents, parts, strict=True)):
        suffix = f"-cogroup-agg-{number}"
        node = Aggregate(
            name=graph.named(named, "COGROUPKSTREAM-AGGREGATE-", suffix),
            parents=(parent,),
            stores=(store.name,),
            store=store.name,
            initializer=initializer,
            aggregator=aggregator,
            window=window,
            merge=merge,
            caching=options.caching,
            number=number,
        )
        names.append(graph.add(node))
    merged = graph.named(named, "COGROUPKSTREAM-MERGE-", "-cogroup-merge")
    graph.add(Table(name=merged, parents=tuple(names), operation="pass"))
    return ktable.KTable(graph, merged, *windowed.windowed_serdes(options.serdes(), window))
