"""Aggregations of a grouped stream per key, and per key and window."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self

from thulawa.core.callers import topology_error
from thulawa.core.records import Windowed
from thulawa.core.serdes import Serdes
from thulawa.errors import ConfigurationError
from thulawa.streams import grouped as grouping
from thulawa.streams import ktable
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike, StoreOptions
from thulawa.streams.operator_options import AnySerde, Materialized, SerdePair, or_default
from thulawa.streams.type_variables import A, K, R, V
from thulawa.topology import key_serdes
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import Aggregate, WindowKind
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows

_UNTIL_EMITTED = 2**62


def count_one(key: Any, value: Any, count: int) -> int:  # noqa: ARG001 an aggregator gets all
    """Return the count after one more record."""
    return count + 1


def reduced_by(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return the aggregator of a reducer: the first value is the first result."""
    check_function(reducer, "reduce", ("value", "other value"))
    return lambda _, value, result: value if result is None else reducer(result, value)


class StreamAggregations(Generic[K, V, R]):
    """The aggregations of a grouped stream, with and without windows."""

    grouped: "grouping.KGroupedStream[K, V]"
    windows: WindowKind | None = None
    emit: Any = "update"

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: NameLike = None
    ) -> "ktable.KTable[R, int]":
        """Count the records of each key, and window if any.

        Records without a value count in time windows and sessions only, as in Kafka.

        >>> preview(lambda s: s.group_by_key().count(), ("a", "x"), ("b", "x"), ("a", "x"))
        [('a', 1), ('b', 1), ('a', 2)]
        >>> near = SlidingWindows.of(10)
        >>> preview(lambda s: s.group_by_key().windowed_by(near).count(), ("a", "x", 20))
        [(Windowed(key='a', window=Window(start=10, end=20)), 1)]
        """
        grouped = self.grouped
        if materialized is not None and or_default(materialized, Materialized).name is None:
            grouped.graph.generated("")  # Kafka increments twice here
        serde = None if grouped.key_serde is None else Serdes.long()
        return self._fold(
            "KSTREAM-AGGREGATE-", lambda: 0, count_one, add_counts, materialized, named, serde
        )

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[R, V]":
        """Combine the values of each key, and window if any; the first value is the first result.

        >>> preview(lambda s: s.group_by_key().reduce(max), ("a", 3), ("a", 1), ("a", 7))
        [('a', 3), ('a', 3), ('a', 7)]
        """
        aggregator, merger = reduced_by(reducer), merger_of(reducer)
        serde = self.grouped.value_serde
        return self._fold("KSTREAM-REDUCE-", None, aggregator, merger, materialized, named, serde)

    def _fold(
        self,
        prefix: str,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        merger: Callable[..., Any] | None,
        materialized: Materialized[Any, Any] | None,
        named: NameLike,
        value_serde: AnySerde = None,
    ) -> "ktable.KTable[Any, Any]":
        """Add the aggregation and its store."""
        grouped, graph = self.grouped, self.grouped.graph
        options = or_default(materialized, Materialized)
        store = graph.store_name(options, prefix)
        node = Aggregate(
            name=graph.named(named, prefix),
            stores=(store.name,),
            store=store.name,
            initializer=initializer,
            aggregator=aggregator,
            window=self.windows,
            merge=merger,
            emit=self.emit,
            caching=options.caching,
        )
        if grouped.options.two_step:
            node = grouped.after_first_step(node, store, options.serdes(None, value_serde)[1])
        else:
            node = replace(node, parents=(grouped.repartitioned(store, options),))
        filled = options.with_defaults(grouped.options.key_serde, value_serde)
        add_aggregate_store(graph, store, filled, self.windows, self.emit)
        graph.add(node)
        serdes = options.serdes(grouped.key_serde, value_serde)
        return ktable.KTable(graph, node.name, *windowed_serdes(serdes, self.windows))


def add_aggregate_store(
    graph: GraphBuilder,
    store: InternalName,
    options: StoreOptions,
    window: WindowKind | None,
    emit: str = "update",
) -> None:
    """Add the store that fits the windows of an aggregation."""
    if window is None:
        graph.add_store(store, options)
        return
    # Windows that are emitted when they close are removed after that, not before.
    retention = window.retention if emit == "update" else _UNTIL_EMITTED
    if isinstance(window, SessionWindows):
        graph.add_store(store, options, "session", retention=retention)
    else:
        graph.add_store(store, options, "window", size=window.size, retention=retention)


def windowed_serdes(serdes: SerdePair, window: WindowKind | None) -> SerdePair:
    """Return the serdes of a table whose keys are windowed."""
    key_serde, value_serde = serdes
    if key_serde is None or window is None:
        return serdes
    return key_serdes.windowed(key_serde, window), value_serde


def add_counts(key: Any, one: int, other: int) -> int:  # noqa: ARG001 a merger gets the key too
    """Return the sum of two counts."""
    return one + other


def merger_of(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return the merger of a reducer."""

    def merge(_: Any, one: Any, other: Any) -> Any:
        return other if one is None else reducer(one, other)

    return merge


@dataclass(frozen=True, slots=True)
class EmitStrategy:
    """When the result of a window is emitted."""

    kind: Literal["update", "close"]

    @classmethod
    def on_window_update(cls) -> "EmitStrategy":
        """Emit every update."""
        return cls("update")

    @classmethod
    def on_window_close(cls) -> "EmitStrategy":
        """Emit one final result when the window closes."""
        return cls("close")


def check_windows(windows: object) -> None:
    """Raise `TopologyError` unless these are windows of an aggregation."""
    if not isinstance(windows, TimeWindows | SlidingWindows | SessionWindows):
        raise topology_error(
            f"windowed_by needs TimeWindows, SlidingWindows or SessionWindows, not {windows!r}"
        )


class _Windowed(StreamAggregations[K, V, Windowed[K]]):
    """A stream grouped by key and window."""

    def __init__(self, grouped: "grouping.KGroupedStream[K, V]", windows: WindowKind) -> None:
        self.grouped = grouped
        self.windows = windows

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Choose when results are emitted.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(TimeWindows.of(10))
        ...     return windows.emit_strategy(EmitStrategy.on_window_close()).count()
        >>> preview(program, ("a", "x", 1), ("a", "x", 2), ("b", "x", 10))
        [(Windowed(key='a', window=Window(start=0, end=10)), 2)]
        """
        if not isinstance(strategy, EmitStrategy):
            raise ConfigurationError(f"emit_strategy needs an EmitStrategy, not {strategy!r}")
        self.emit = strategy.kind
        return self


class TimeWindowedKStream(_Windowed[K, V]):
    """A stream grouped by key and time window, tumbling, hopping or sliding."""

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[Windowed[K], A]":
        """Fold the values of each key and window.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(TimeWindows.of(10).advance_by(5))
        ...     table = windows.aggregate(lambda: "", lambda k, v, text: text + v)
        ...     return table.to_stream(lambda w, text: w.window.start)
        >>> preview(program, ("a", "x", 7))
        [(0, 'x'), (5, 'x')]
        """
        return self._fold("KSTREAM-AGGREGATE-", initializer, aggregator, None, materialized, named)


class SessionWindowedKStream(_Windowed[K, V]):
    """A stream grouped by key and session."""

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        merger: Callable[[K, A, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[Windowed[K], A]":
        """Fold the values of each session; ``merger`` merges sessions that a record connects.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(SessionWindows.of(10, grace=10))
        ...     table = windows.aggregate(lambda: 0, lambda k, v, n: n + v, lambda k, a, b: a + b)
        ...     return table.to_stream(lambda w, n: tuple(w.window))
        >>> preview(program, ("a", 1, 0), ("a", 2, 15), ("a", 4, 8))
        [([0, 0], 1), ([15, 15], 2), ([0, 0], None), ([15, 15], None), ([0, 15], 7)]
        """
        return self._fold(
            "KSTREAM-AGGREGATE-", initializer, aggregator, merger, materialized, named
        )
