"""Joins of a stream with a stream, a table, or a global table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from thulawa.core.callers import topology_error
from thulawa.core.durations import milliseconds
from thulawa.streams import kstream, ktable
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike, StreamOrTable
from thulawa.streams.operator_options import Joined, Materialized, StreamJoined, or_default
from thulawa.streams.type_variables import K1, V1, V2, K, V
from thulawa.topology.functions import check_function
from thulawa.topology.nodes import JoinBuffer, JoinKind, LookupJoin, Stateless, StreamJoin
from thulawa.topology.windows import JoinWindows


def check_stream(other: object, verb: str) -> None:
    """Raise `TopologyError` if ``other`` is not a stream."""
    if not isinstance(other, kstream.KStream):
        raise topology_error(f"a stream {verb} a KStream, not a {type(other).__name__}")


class JoinOperators(StreamOrTable[K, V]):
    """The join operators of a stream."""

    @overload
    def join(
        self,
        other: "kstream.KStream[K, V1]",
        joiner: Callable[[V, V1], V2],
        windows: JoinWindows,
        joined: StreamJoined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]": ...

    @overload
    def join(
        self,
        other: "ktable.KTable[K, V1]",
        joiner: Callable[[V, V1], V2],
        joined: Joined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]": ...

    @overload
    def join(
        self,
        other: "ktable.GlobalKTable[K1, V1]",
        key_selector: Callable[[K, V], K1 | None],
        joiner: Callable[[V, V1], V2],
        *,
        named: NameLike = None,
    ) -> "kstream.KStream[K, V2]": ...

    def join(self, other: Any, *arguments: Any, **options: Any) -> "kstream.KStream[K, Any]":
        """Join with a stream (windowed), a table, or a global table (by any key).

        With a stream, records of the same key within the window are joined; with a table, a record
        and the current row. A record without a match emits nothing.

        >>> from operator import add
        >>> near = JoinWindows.of("5 s")
        >>> preview(lambda l, r: l.join(r, add, near), ("l", "k", "A", 0), ("r", "k", "B", 9))
        [('k', 'AB')]
        >>> preview(lambda s, table: s.join(table, add), ("table", "k", "B"), ("s", "k", "A"))
        [('k', 'AB')]
        >>> def by_value(s, global_table):
        ...     return s.join(global_table, lambda k, v: v, add)
        >>> preview(by_value, ("global_table", "A", "B"), ("s", "k", "A"))
        [('k', 'AB')]
        """
        return _join(self, "inner", other, *arguments, **options)

    @overload
    def left_join(
        self,
        other: "kstream.KStream[K, V1]",
        joiner: Callable[[V, V1 | None], V2],
        windows: JoinWindows,
        joined: StreamJoined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]": ...

    @overload
    def left_join(
        self,
        other: "ktable.KTable[K, V1]",
        joiner: Callable[[V, V1 | None], V2],
        joined: Joined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]": ...

    @overload
    def left_join(
        self,
        other: "ktable.GlobalKTable[K1, V1]",
        key_selector: Callable[[K, V], K1 | None],
        joiner: Callable[[V, V1 | None], V2],
        *,
        named: NameLike = None,
    ) -> "kstream.KStream[K, V2]": ...

    def left_join(self, other: Any, *arguments: Any, **options: Any) -> "kstream.KStream[K, Any]":
        """Join like `join`; a record without a match is joined with None.

        With a stream it is emitted when its window has closed, with a table at once.

        >>> preview(lambda s, table: s.left_join(table, lambda a, b: (a, b)), ("s", "k", "A"))
        [('k', ['A', None])]
        """
        return _join(self, "left", other, *arguments, **options)

    def outer_join(
        self,
        other: "kstream.KStream[K, V1]",
        joiner: Callable[[V | None, V1 | None], V2],
        windows: JoinWindows,
        joined: StreamJoined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]":
        """Join like `join`; unmatched records of both sides are emitted when their window closes.

        >>> def program(left, right):
        ...     return left.outer_join(right, lambda a, b: (a, b), JoinWindows.of(5))
        >>> preview(program, ("left", "k", "A", 0), ("right", "other", "B", 100))
        [('k', ['A', None])]
        """
        return _join_streams(self, "outer", other, joiner, windows, joined)

    def join_prior(
        self,
        other: "kstream.KStream[K, V1]",
        joiner: Callable[[V, V1], V2],
        windows: JoinWindows,
        joined: StreamJoined[K, V] | None = None,
    ) -> "kstream.KStream[K, V2]":
        """Join each record with the other side's strictly older records only.

        >>> def program(l, r):
        ...     return l.join_prior(r, lambda a, b: a + b, JoinWindows.of(5))
        >>> preview(program, ("r", "k", "older", 1), ("r", "k", "same", 2), ("l", "k", "than ", 2))
        [('k', 'than older')]
        """
        return _join_streams(self, "inner", other, joiner, windows, joined, prior=True)


def _join(
    stream: Any, kind: JoinKind, other: Any, *arguments: Any, **options: Any
) -> "kstream.KStream[Any, Any]":
    """Join a stream with a stream, a table or a global table."""
    if isinstance(other, kstream.KStream):
        return _join_streams(stream, kind, other, *arguments, **options)
    if isinstance(other, ktable.KTable):
        return _join_table(stream, other, *arguments, left=kind == "left", **options)
    if isinstance(other, ktable.GlobalKTable):
        return _join_global(stream, other, *arguments, left=kind == "left", **options)
    raise topology_error(
        f"a stream joins a KStream, a KTable or a GlobalKTable, not a {type(other).__name__}"
    )


def _join_streams(
    left: Any,
    kind: JoinKind,
    right: "kstream.KStream[Any, Any]",
    joiner: Callable[..., Any],
    windows: JoinWindows | None = None,
    joined: StreamJoined[Any, Any] | None = None,
    *,
    prior: bool = False,
) -> "kstream.KStream[Any, Any]":
    """Join two streams over windows."""
    check_stream(right, "joins over windows with")
    if not isinstance(windows, JoinWindows):
        raise topology_error("a join of two streams needs JoinWindows: pass JoinWindows.of(...)")
    graph = left.graph
    graph.check_same_builder(right.graph)
    options = or_default(joined, StreamJoined)
    other_options = replace(options, value_serde=options.other_value_serde)
    relaxed = kind != "inner"
    left = _by_key(left, options, suffix="-left", keep_null_keys=relaxed)
    right = _by_key(right, other_options, suffix="-right", keep_null_keys=relaxed)
    names = _JoinNames(graph, kind, options)
    given = options.store_name is not None
    for store, side_options in zip(names.stores, (options, other_options), strict=True):
        serdes: Materialized[Any, Any] = Materialized.with_(*side_options.serdes())
        graph.add_store(InternalName(store, given), serdes, "join", retention=windows.retention)
    if names.outer_store is not None:
        serdes = Materialized.with_(options.key_serde, None)
        graph.add_store(InternalName(names.outer_store, given), serdes, "buffer")
    for parent, buffer, store in zip((left, right), names.buffers, names.stores, strict=True):
        graph.add(JoinBuffer(name=buffer, parents=(parent.name,), stores=(store,), store=store))
    this = StreamJoin(
        name=names.sides[0],
        side="left",
        kind=kind,
        pair=names.merge,
        clock=names.stores[0],
        window=windows,
        joiner=_of_values(joiner),
        other_store=names.stores[1],
        outer_store=names.outer_store,
        prior=prior,
    )
    other = replace(this, name=names.sides[1], side="right", other_store=names.stores[0])
    for side, buffer in zip((this, other), names.buffers, strict=True):
        stores = tuple(store for store in (side.other_store, side.outer_store) if store is not None)
        graph.add(replace(side, parents=(buffer,), stores=stores))
    graph.add(Stateless(name=names.merge, parents=tuple(names.sides), operation="pass"))
    key_serde = options.key_serde or left.key_serde or right.key_serde
    return kstream.KStream(graph, names.merge, key_serde)


class _JoinNames:
    """The names of a stream-stream join's nodes and stores, left before right, in Kafka's order."""

    def __init__(
        self, graph: GraphBuilder, kind: JoinKind, options: StreamJoined[Any, Any]
    ) -> None:
        self.buffers = (
            graph.named(options, "KSTREAM-WINDOWED-", "-this-windowed"),
            graph.named(options, "KSTREAM-WINDOWED-", "-other-windowed"),
        )
        this, other = "JOINTHIS", "JOINOTHER"
        suffixes = ["-this-join", "-other-join"]
        if kind == "outer":
            this, suffixes[0] = "OUTERTHIS", "-outer-this-join"
        if kind != "inner":
            other, suffixes[1] = "OUTEROTHER", "-outer-other-join"
        generated = [graph.generated(f"KSTREAM-{this}-"), graph.generated(f"KSTREAM-{other}-")]

        def own_or_generated(own: str | None) -> list[str]:
            return generated if own is None else [own + suffix for suffix in suffixes]

        self.sides = own_or_generated(options.name)
        self.stores = [f"{name}-store" for name in own_or_generated(options.store_name)]
        self.merge = graph.named(options, "KSTREAM-MERGE-", "-merge")
        self.outer_store = None
        if kind != "inner":
            shared = f"KSTREAM-OUTERSHARED-{generated[0][-10:]}"
            if options.store_name is not None:
                shared = f"{options.store_name}-{kind}-shared-join"
            self.outer_store = f"{shared}-store"


def _by_key(
    stream: "kstream.KStream[Any, Any]",
    options: Joined[Any, Any] | StreamJoined[Any, Any],
    *,
    suffix: str = "",
    keep_null_keys: bool,
) -> "kstream.KStream[Any, Any]":
    """Return the stream, behind a repartition if its key has changed."""
    if not stream.rekeyed:
        return stream
    own_name = None if options.name is None else options.name + suffix
    name = InternalName(stream.name, chosen=False).or_own(own_name)
    return stream.repartitioned(name, options, keep_null_keys=keep_null_keys)


def _join_table(
    stream: "kstream.KStream[Any, Any]",
    table: "ktable.KTable[Any, Any]",
    joiner: Callable[..., Any],
    joined: Joined[Any, Any] | None = None,
    *,
    left: bool,
) -> "kstream.KStream[Any, Any]":
    graph = stream.graph
    graph.check_same_builder(table.graph)
    options = or_default(joined, Joined)
    stream = _by_key(stream, options, keep_null_keys=left)
    name = graph.named(options, "KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-")
    buffer = None
    if options.grace is not None:
        if not table.versioned:
            raise topology_error(
                "a join with a grace period needs a versioned table: "
                "create it with Materialized.versioned"
            )
        buffer = f"{name}-Buffer"
        serdes: Materialized[Any, Any] = Materialized.with_(None, options.value_serde)
        graph.add_store(InternalName(buffer, chosen=True), serdes, "buffer")
    stores = graph.stores_of(table.name)
    graph.add(
        LookupJoin(
            name=name,
            parents=(stream.name,),
            stores=stores if buffer is None else (*stores, buffer),
            table=table.name,
            joiner=_of_values(joiner),
            left=left,
            buffer=buffer,
            grace=0 if options.grace is None else milliseconds(options.grace, name="grace"),
        )
    )
    key_serde = options.key_serde or stream.key_serde or table.key_serde
    return kstream.KStream(graph, name, key_serde)


def _join_global(
    stream: "kstream.KStream[Any, Any]",
    table: "ktable.GlobalKTable[Any, Any]",
    key_selector: Callable[..., Any],
    joiner: Callable[..., Any] | None = None,
    *,
    left: bool,
    named: NameLike = None,
) -> "kstream.KStream[Any, Any]":
    graph = stream.graph
    graph.check_same_builder(table.graph)
    if joiner is None:
        raise topology_error(
            "a join with a global table needs a function of (key, value) that returns the "
            "table's key, then the joiner"
        )
    name = graph.named(named, "KSTREAM-LEFTJOIN-")  # Kafka's name for both kinds
    graph.add(
        LookupJoin(
            name=name,
            parents=(stream.name,),
            table=table.name,
            joiner=_of_values(joiner),
            left=left,
            key_selector=key_selector,
        )
    )
    return kstream.KStream(graph, name, stream.key_serde, rekeyed=stream.rekeyed)


def _of_values(joiner: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a joiner of key and values for a joiner of values alone."""
    check_function(joiner, "joiner", ("value", "other value"))
    return lambda _, value, other: joiner(value, other)
