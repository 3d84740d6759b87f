"""Grouped streams and tables: count, reduce and aggregate per key."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from thulawa.core.callers import caller
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import TopologyError
from thulawa.streams import cogrouped, kstream, ktable, windowed
from thulawa.streams.graph_builder import GraphBuilder, NameLike, StoreName
from thulawa.streams.operator_options import Grouped, Materialized, or_default, with_default_serdes
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import Aggregate, PartialAggregate, Sink, Source, TableAggregate
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

_UNTIL_EMITTED = 2**62


def count_one(key: Any, value: Any, count: int) -> int:  # noqa: ARG001 an aggregator gets all
    """Return the count after one more record."""
    return count + 1


def reduced_by(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return the aggregator of a reducer: the first value is the first result."""
    check_function(reducer, "reduce", ("value", "other value"))
    return lambda _, value, result: value if result is None else reducer(result, value)


class KGroupedStream(Generic[K, V]):
    """A stream grouped by key.

    >>> from thulawa.streams.streams_builder import StreamsBuilder
    >>> from thulawa.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> builder.stream("clicks").group_by_key().count().to_stream().to("counts")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     clicks.pipe_key_value_list([("ann", "/"), ("bob", "/"), ("ann", "/buy")])
    ...     driver.create_output_topic("counts").read_key_values_to_list()
    [('ann', 1), ('bob', 1), ('ann', 2)]
    """

    def __init__(
        self, stream: "kstream.KStream[K, V]", grouped: Grouped[K, V], *, rekeyed: bool
    ) -> None:
        self.stream = stream
        self.graph = stream.graph
        self.options = grouped
        self.rekeyed = rekeyed
        self.key_serde = grouped.key_serde or stream.key_serde
        self.value_serde = grouped.value_serde or stream.value_serde
        self._source: str | None = None

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: NameLike = None
    ) -> "ktable.KTable[K, int]":
        """Count the records of each key.

        >>> preview(lambda s: s.group_by_key().count(), ("a", "x"), ("b", "x"), ("a", "x"))
        [('a', 1), ('b', 1), ('a', 2)]
        """
        if materialized is not None and or_default(materialized, Materialized).name is None:
            self.graph.generated("KSTREAM-AGGREGATE-STATE-STORE-")  # Kafka increments twice here
        return self.aggregated(
            "KSTREAM-AGGREGATE-",
            lambda: 0,
            count_one,
            materialized,
            named,
            merge=add_counts,
            value_serde=self.count_serde,
        )

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[K, V]":
        """Combine the values of each key by a function; the first value is the first result.

        >>> preview(lambda s: s.group_by_key().reduce(max), ("a", 3), ("a", 1), ("a", 7))
        [('a', 3), ('a', 3), ('a', 7)]
        """
        return self.aggregated(
            "KSTREAM-REDUCE-",
            None,
            reduced_by(reducer),
            materialized,
            named,
            merge=merger_of(reducer),
            value_serde=self.value_serde,
        )

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

        >>> preview(
        ...     lambda s: s.group_by_key().aggregate(lambda: (), lambda k, v, seen: (*seen, v)),
        ...     ("a", 1),
        ...     ("a", 2),
        ... )
        [('a', [1]), ('a', [1, 2])]
        """
        return self.aggregated(
            "KSTREAM-AGGREGATE-", initializer, aggregator, materialized, named, merge=merger
        )

    @property
    def count_serde(self) -> Serde[int] | None:
        """The serde of counts: None, as for the keys, or long."""
        return None if self.key_serde is None else Serdes.long()

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

        >>> preview(
        ...     lambda a, b: (
        ...         a.group_by_key()
        ...         .cogroup(lambda k, v, total: total + v)
        ...         .cogroup(b.group_by_key(), lambda k, v, total: total - v)
        ...         .aggregate(lambda: 0)
        ...     ),
        ...     ("a", "k", 5),
        ...     ("b", "k", 2),
        ... )
        [('k', 5), ('k', 3)]
        """
        return cogrouped.CogroupedKStream(self.graph, ((self, aggregator),))

    def aggregated(  # noqa: PLR0913 the options of all aggregations
        self,
        prefix: str,
        initializer: Callable[[], Any] | None,
        aggregator: Callable[..., Any],
        materialized: Materialized[Any, Any] | None,
        named: NameLike,
        *,
        merge: Callable[..., Any] | None = None,
        window: Any = None,
        emit: Any = "update",
        value_serde: Serde[Any] | None = None,
    ) -> "ktable.KTable[Any, Any]":
        """Add the aggregation and its store."""
        store = self.graph.store_name(materialized, prefix)
        name = self.graph.named(named, prefix)
        if self.options.two_step:
            first = PartialAggregate(
                name=f"{self.options.name or store.name}-partial",
                parents=(self.stream.name,),
                initializer=initializer,
                aggregator=aggregator,
            )
            named_serde = None if materialized is None else materialized.value_serde
            parent = self._first_step(first, store, merge, window, named_serde or value_serde)
            initializer, aggregator = None, merged_by(merge)
        else:
            parent = self.repartitioned(store.name, materialized, chosen=store.chosen)
        filled = with_default_serdes(materialized, self.options.key_serde, value_serde)
        add_aggregate_store(self.graph, store, filled, window, emit)
        self.graph.add(
            Aggregate(
                name=name,
                parents=(parent,),
                stores=(store.name,),
                store=store.name,
                initializer=initializer,
                aggregator=aggregator,
                window=window,
                merge=merge,
                emit=emit,
                caching=materialized is not None and materialized.caching,
            )
        )
        serdes = ktable.serdes_of(materialized, self.key_serde, value_serde)
        return ktable.KTable(self.graph, name, *windowed_serdes(serdes, window))

    def repartitioned(
        self, prefix: str, materialized: Materialized[Any, Any] | None, *, chosen: bool
    ) -> str:
        """Return the parent of the aggregation: behind a repartition if the key has changed."""
        if not self.rekeyed:
            return self.stream.name
        options = self.options
        if options.name is not None and self._source is not None:
            for _ in range(3):
                self.graph.generated("")  # Kafka increments, and reuses the repartition
            return self._source
        self._source = self.stream.repartitioned(
            options.name or prefix,
            chosen=chosen or options.name is not None,
            key_serde=options.key_serde or ktable.serdes_of(materialized, None)[0],
            value_serde=options.value_serde,
        ).name
        return self._source

    def _first_step(
        self,
        first: PartialAggregate,
        store: StoreName,
        merge: Callable[..., Any] | None,
        window: Any,
        value_serde: Serde[Any] | None,
    ) -> str:
        """Aggregate before the repartition; return the node behind it."""
        check_two_step(rekeyed=self.rekeyed, mergeable=merge is not None, windowed=bool(window))
        self.graph.add(first)
        return self.graph.repartition(
            first.name,
            self.options.name or store.name,
            chosen=store.chosen or self.options.name is not None,
            key_serde=self.key_serde,
            value_serde=value_serde,
        )


def merged_by(merge: Callable[..., Any] | None) -> Callable[[Any, Any, Any], Any]:
    """Return the aggregator of a merger: the first part is the first result."""
    assert merge is not None
    return lambda key, part, result: part if result is None else merge(key, result, part)


def check_two_step(*, rekeyed: bool, mergeable: bool, windowed: bool) -> None:
    """Raise `TopologyError` if two steps would save nothing, or change the result."""
    reason = None
    if not rekeyed:
        reason = "the key has not changed, so there is no repartition: remove two_step"
    elif windowed:
        reason = "whether a record is late for a window depends on the order of all records"
    elif not mergeable:
        reason = "partial results must be merged: pass a merger"
    if reason is not None:
        raise TopologyError(f"this cannot be aggregated in two steps: {reason}", where=caller())


def add_aggregate_store(
    graph: GraphBuilder,
    store: StoreName,
    materialized: Materialized[Any, Any] | None,
    window: Any,
    emit: str = "update",
) -> None:
    """Add the store that fits the windows of an aggregation."""
    if window is None:
        graph.add_store(store, materialized=materialized)
        return
    # Windows that are emitted when they close are removed after that, not before.
    retention = window.retention if emit == "update" else _UNTIL_EMITTED
    if isinstance(window, SessionWindows):
        graph.add_store(store, "session", materialized, retention=retention)
    else:
        graph.add_store(store, "window", materialized, size=window.size, retention=retention)


def windowed_serdes(
    serdes: tuple[Serde[Any] | None, Serde[Any] | None], window: Any
) -> tuple[Serde[Any] | None, Serde[Any] | None]:
    """Return the serdes of a table whose keys are windowed."""
    key_serde, value_serde = serdes
    if key_serde is None or window is None:
        return serdes
    if isinstance(window, SessionWindows):
        return Serdes.session_windowed(key_serde), value_serde
    return Serdes.time_windowed(key_serde, window.size), value_serde


def add_counts(key: Any, one: int, other: int) -> int:  # noqa: ARG001 a merger gets the key too
    """Return the sum of two counts."""
    return one + other


def merger_of(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return the merger of a reducer."""

    def merge(_: Any, one: Any, other: Any) -> Any:
        return other if one is None else reducer(one, other)

    return merge


class KGroupedTable(Generic[K, V]):
    """A table grouped by another key: an update subtracts the old row and adds the new one.

    >>> from thulawa.streams.streams_builder import StreamsBuilder
    >>> from thulawa.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> teams = builder.table("team-of").group_by(lambda player, team: (team, player))
    >>> teams.count().to_stream().to("sizes")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     team_of = driver.create_input_topic("team-of")
    ...     team_of.pipe_key_value_list([("ann", "red"), ("bob", "red"), ("ann", "blue")])
    ...     driver.create_output_topic("sizes").read_key_values_to_list()
    [('red', 1), ('red', 2), ('red', 1), ('blue', 1)]
    """

    def __init__(self, graph: GraphBuilder, name: str, grouped: Grouped[K, V]) -> None:
        if grouped.two_step:
            raise TopologyError(
                "a table cannot be aggregated in two steps: its rows are subtracted again when "
                "they change; remove two_step",
                where=caller(),
            )
        self._graph = graph
        self._name = name
        self._options = grouped
        self._source: str | None = None

    def count(
        self, materialized: Materialized[K, int] | None = None, *, named: NameLike = None
    ) -> "ktable.KTable[K, int]":
        """Count the rows of each key.

        >>> preview(
        ...     lambda table: table.group_by(lambda k, v: (v, k)).count(), ("a", "x"), ("a", None)
        ... )
        [('x', 1), ('x', 0)]
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

        >>> preview(
        ...     lambda table: table.group_by(lambda k, v: ("all", v)).reduce(
        ...         lambda total, v: total + v, lambda total, v: total - v
        ...     ),
        ...     ("a", 5),
        ...     ("b", 2),
        ...     ("a", 1),
        ... )
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

        >>> preview(
        ...     lambda table: table.group_by(lambda k, v: ("all", v)).aggregate(
        ...         lambda: 0, lambda k, v, total: total + v, lambda k, v, total: total - v
        ...     ),
        ...     ("a", 5),
        ...     ("a", 1),
        ... )
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
        value_serde: Serde[Any] | None = None,
    ) -> "ktable.KTable[Any, Any]":
        graph, options = self._graph, self._options
        store = graph.store_name(materialized, "KTABLE-AGGREGATE-")
        sink = graph.named(named, "KSTREAM-SINK-", "-sink")
        source = graph.named(named, "KSTREAM-SOURCE-", "-source")
        name = graph.named(named, prefix)
        topic = f"{options.name or store.name}-repartition"
        if self._source is None or options.name is None:
            if options.name is None and not store.chosen:
                graph.guard("repartition", topic)
            sent = Sink(
                name=sink,
                parents=(self._name,),
                topic=topic,
                key_serde=options.key_serde or ktable.serdes_of(materialized, None)[0],
                value_serde=options.value_serde,
                internal=True,
                payload="change",
            )
            graph.add(sent)
            graph.add(
                Source(
                    name=source,
                    topics=(topic,),
                    key_serde=options.key_serde,
                    internal=True,
                    payload="change",
                )
            )
            self._source = source
        filled = with_default_serdes(materialized, options.key_serde, value_serde)
        graph.add_store(store, materialized=filled)
        node = TableAggregate(
            name=name,
            parents=(self._source,),
            stores=(store.name,),
            store=store.name,
            initializer=initializer,
            adder=adder,
            subtractor=subtractor,
        )
        graph.add(node)
        serdes = ktable.serdes_of(materialized, options.key_serde, value_serde)
        return ktable.KTable(graph, name, *serdes)
