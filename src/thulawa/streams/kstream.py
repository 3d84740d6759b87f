"""KStream: an unbounded sequence of records, and its operators.

Every method adds nodes to the builder's topology and returns the resulting stream or table; nothing
runs. Functions get key and value unless the operator is about values alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, overload

from thulawa.core.records import RecordMetadata
from thulawa.streams import branches, ktable
from thulawa.streams import grouped as grouping
from thulawa.streams.async_operators import AsyncOperators
from thulawa.streams.graph_builder import GraphBuilder, InternalName, NameLike
from thulawa.streams.joins import JoinOperators, check_stream
from thulawa.streams.kip28 import StreamAliases
from thulawa.streams.operator_options import (
    Consumed,
    Grouped,
    Materialized,
    Produced,
    Repartitioned,
    Serialized,
    or_default,
)
from thulawa.streams.type_variables import K1, V1, K, V
from thulawa.topology.nodes import Process, Sink, Source, Stateless, Table
from thulawa.topology.processor import Processor


class KStream(AsyncOperators[K, V], JoinOperators[K, V], StreamAliases[K, V]):
    """A stream of records."""

    # --- one record at a time

    def filter(
        self, predicate: Callable[[K, V], object], *, named: NameLike = None
    ) -> "KStream[K, V]":
        """Keep the records for which the predicate is true.

        >>> preview(lambda s: s.filter(lambda k, v: v > 1), ("a", 1), ("b", 2))
        [('b', 2)]
        """
        return self.at(self._add("filter", "KSTREAM-FILTER-", predicate, named))

    def filter_not(
        self, predicate: Callable[[K, V], object], *, named: NameLike = None
    ) -> "KStream[K, V]":
        """Keep the records for which the predicate is false.

        >>> preview(lambda s: s.filter_not(lambda k, v: v > 1), ("a", 1), ("b", 2))
        [('a', 1)]
        """
        return self.at(self._add("filter_not", "KSTREAM-FILTER-", predicate, named))

    def map(
        self, mapper: Callable[[K, V], tuple[K1, V1]], *, named: NameLike = None
    ) -> "KStream[K1, V1]":
        """Map each record to another; operators by key behind it repartition.

        >>> preview(lambda s: s.map(lambda k, v: (v, k)), ("a", 1))
        [(1, 'a')]
        """
        return self._rekeyed(self._add("map", "KSTREAM-MAP-", mapper, named))

    @overload
    def map_values(
        self, mapper: Callable[[V], V1], *, named: NameLike = None
    ) -> "KStream[K, V1]": ...

    @overload
    def map_values(
        self, mapper: Callable[[K, V], V1], *, with_key: Literal[True], named: NameLike = None
    ) -> "KStream[K, V1]": ...

    def map_values(
        self, mapper: Callable[..., Any], *, with_key: bool = False, named: NameLike = None
    ) -> "KStream[K, Any]":
        """Map each value to another; keys and partitions stay the same.

        >>> preview(lambda s: s.map_values(len), ("a", "tea"))
        [('a', 3)]
        >>> preview(lambda s: s.map_values(lambda k, v: k + v, with_key=True), ("a", "tea"))
        [('a', 'atea')]
        """
        prefix = "KSTREAM-MAPVALUES-"
        return self._revalued(self._add("map_values", prefix, mapper, named, with_key=with_key))

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K1, V1]]], *, named: NameLike = None
    ) -> "KStream[K1, V1]":
        """Map each record to any number of records.

        >>> preview(lambda s: s.flat_map(lambda k, v: [(w, 1) for w in v.split()]), ("a", "to be"))
        [('to', 1), ('be', 1)]
        """
        return self._rekeyed(self._add("flat_map", "KSTREAM-FLATMAP-", mapper, named))

    @overload
    def flat_map_values(
        self, mapper: Callable[[V], Iterable[V1]], *, named: NameLike = None
    ) -> "KStream[K, V1]": ...

    @overload
    def flat_map_values(
        self,
        mapper: Callable[[K, V], Iterable[V1]],
        *,
        with_key: Literal[True],
        named: NameLike = None,
    ) -> "KStream[K, V1]": ...

    def flat_map_values(
        self, mapper: Callable[..., Any], *, with_key: bool = False, named: NameLike = None
    ) -> "KStream[K, Any]":
        """Map each value to any number of values; keys and partitions stay the same.

        >>> preview(lambda s: s.flat_map_values(str.split), ("a", "to be"))
        [('a', 'to'), ('a', 'be')]
        """
        prefix = "KSTREAM-FLATMAPVALUES-"
        name = self._add("flat_map_values", prefix, mapper, named, with_key=with_key)
        return self._revalued(name)

    def select_key(
        self, mapper: Callable[[K, V], K1], *, named: NameLike = None
    ) -> "KStream[K1, V]":
        """Map each key to another.

        >>> preview(lambda s: s.select_key(lambda k, v: v["id"]), ("a", {"id": 7}))
        [(7, {'id': 7})]
        """
        name = self._add("select_key", "KSTREAM-KEY-SELECT-", mapper, named)
        return KStream(self.graph, name, None, self.value_serde, rekeyed=True)

    def peek(self, action: Callable[[K, V], object], *, named: NameLike = None) -> "KStream[K, V]":
        """Call a function for each record, and forward the record.

        >>> seen = []
        >>> preview(lambda s: s.peek(lambda k, v: seen.append(v)), ("a", 1)), seen
        ([('a', 1)], [1])
        """
        return self.at(self._add("peek", "KSTREAM-PEEK-", action, named))

    def foreach(self, action: Callable[[K, V], object], *, named: NameLike = None) -> None:
        """Call a function for each record, and forward nothing.

        >>> seen = []
        >>> def program(s):
        ...     s.foreach(lambda k, v: seen.append(v))
        ...     return s
        >>> preview(program, ("a", 1)), seen
        ([('a', 1)], [1])
        """
        self._add("foreach", "KSTREAM-FOREACH-", action, named)

    def print(
        self,
        write: Callable[[str], object] = print,
        *,
        label: str | None = None,
        named: NameLike = None,
    ) -> None:
        """Print a line for each record: ``[label]: key, value``.

        >>> def program(s):
        ...     s.print(label="in")
        ...     return s
        >>> _ = preview(program, ("a", 1))
        [in]: a, 1
        """
        title = self.name if label is None else label

        def show(key: K, value: V) -> None:
            write(f"[{title}]: {key}, {value}")

        self._add("foreach", "KSTREAM-PRINTER-", show, named)

    # --- several streams

    def split(self, *, named: NameLike = None) -> "branches.BranchedKStream[K, V]":
        """Split into branches: each record goes to the first branch whose predicate is true.

        >>> from thulawa.streams import Branched
        >>> def program(s):
        ...     parts = s.split(named="is-").branch(lambda k, v: v < 0, Branched.as_("negative"))
        ...     return parts.no_default_branch()["is-negative"]
        >>> preview(program, ("a", 1), ("b", -1))
        [('b', -1)]
        """
        return branches.BranchedKStream(self, named)

    def branch(self, *predicates: Callable[[K, V], object]) -> "list[KStream[K, V]]":
        """Return a stream per predicate; each record goes to the first true one, or is dropped.

        >>> def program(s):
        ...     big, small = s.branch(lambda k, v: v > 9, lambda k, v: v >= 0)
        ...     return small
        >>> preview(program, ("a", 10), ("b", 1), ("c", -1))
        [('b', 1)]
        """
        parts = self.split()
        for predicate in predicates:
            parts = parts.branch(predicate)
        return list(parts.no_default_branch().values())

    def merge(self, other: "KStream[K, V]", *, named: NameLike = None) -> "KStream[K, V]":
        """Merge two streams; each keeps its order, there is none between them.

        >>> preview(lambda a, b: a.merge(b), ("a", "k", 1), ("b", "k", 2))
        [('k', 1), ('k', 2)]
        """
        check_stream(other, "merges with")
        self.graph.check_same_builder(other.graph)
        name = self.graph.named(named, "KSTREAM-MERGE-")
        parents = (self.name, other.name)
        self.graph.add(Stateless(name=name, parents=parents, operation="pass"))
        key_serde = self.key_serde if self.key_serde == other.key_serde else None
        return KStream(self.graph, name, key_serde, rekeyed=self.rekeyed or other.rekeyed)

    # --- topics

    @overload
    def to(
        self, topic: str | Callable[[K, V], str], produced: Produced[K, V] | None = None
    ) -> None: ...

    @overload
    def to(
        self,
        topic: Callable[[K, V, RecordMetadata], str],
        produced: Produced[K, V] | None = None,
    ) -> None: ...

    def to(self, topic: str | Callable[..., str], produced: Produced[K, V] | None = None) -> None:
        """Write to a topic, or to the one that a function of the record returns.

        The function gets key and value, and the record's metadata if it accepts a third argument;
        the topic of records that a punctuation forwards is "".

        >>> from thulawa.streams import StreamsBuilder
        >>> from thulawa.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> builder.stream("all").to(lambda key, value: f"of-{key}")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.create_input_topic("all").pipe_input("ann", 1)
        ...     driver.create_output_topic("of-ann").read_value()
        1
        """
        options = or_default(produced, Produced).with_defaults(self.key_serde, self.value_serde)
        self.graph.add(
            Sink(
                name=self.graph.named(options, "KSTREAM-SINK-"),
                parents=(self.name,),
                topic=topic,
                key_serde=options.key_serde,
                value_serde=options.value_serde,
                partitioner=options.partitioner,
            )
        )

    def through(self, topic: str, produced: Produced[K, V] | None = None) -> "KStream[K, V]":
        """Write to a topic, and read it again.

        >>> preview(lambda s: s.through("halfway").map_values(lambda v: v + 1), ("a", 1))
        [('a', 2)]
        """
        self.to(topic, produced)
        serdes = or_default(produced, Produced).serdes(self.key_serde, self.value_serde)
        return KStream.source(self.graph, (topic,), Consumed.with_(*serdes))

    def repartition(self, repartitioned: Repartitioned[K, V] | None = None) -> "KStream[K, V]":
        """Send each record to the partition of its key; records without a key are dropped.

        >>> preview(lambda s: s.repartition(), ("a", 1), (None, 2))
        [('a', 1)]
        """
        options = or_default(repartitioned, Repartitioned)
        prefix = self.graph.name_or_generated(options, "KSTREAM-REPARTITION-")
        name = InternalName(prefix, chosen=options.name is not None)
        source = self.graph.repartition(self.name, name, options)
        return KStream(self.graph, source, *options.serdes(self.key_serde, self.value_serde))

    def to_table(
        self, materialized: Materialized[K, V] | None = None, *, named: NameLike = None
    ) -> "ktable.KTable[K, V]":
        """Interpret each record as an update of its key; None removes the row.

        >>> preview(lambda s: s.to_table(), ("a", 1), ("a", None))
        [('a', 1), ('a', None)]
        """
        graph, options = self.graph, or_default(materialized, Materialized)
        name = graph.named(named, "KSTREAM-TOTABLE-")
        store = graph.store_name(options, "KSTREAM-TOTABLE-")
        sent = InternalName(name, chosen=named is not None)
        parent = self.repartitioned(sent, options) if self.rekeyed else self
        table = Table(name=name, parents=(parent.name,), operation="source")
        graph.source_table(table, store, options.with_defaults(None, self.value_serde))
        return ktable.KTable(graph, name, *options.serdes(self.key_serde, self.value_serde))

    # --- by key

    def group_by_key(self, grouped: Grouped[K, V] | None = None) -> "grouping.KGroupedStream[K, V]":
        """Group by the current key.

        >>> preview(lambda s: s.group_by_key().count(), ("a", 1), ("a", 1))
        [('a', 1), ('a', 2)]
        """
        options = or_default(grouped, Grouped)
        return grouping.KGroupedStream(self, options, rekeyed=self.rekeyed)

    def group_by(
        self, selector: Callable[[K, V], K1], grouped: Grouped[K1, V] | None = None
    ) -> "grouping.KGroupedStream[K1, V]":
        """Group by another key, with a repartition.

        >>> preview(lambda s: s.group_by(lambda k, v: v).count(), ("a", "x"), ("b", "x"))
        [('x', 1), ('x', 2)]
        """
        options = or_default(grouped, Grouped)
        rekeyed = self.select_key(selector, named=options.name)
        return grouping.KGroupedStream(rekeyed, options, rekeyed=True)

    # --- processors

    def process(
        self,
        supplier: Callable[[], Processor[K, V, K1, V1]],
        *stores: str,
        named: NameLike = None,
    ) -> "KStream[K1, V1]":
        """Process each record by a user-defined processor, connected to stores by name.

        >>> class Twice(Processor):
        ...     def process(self, record):
        ...         self.context.forward(record)
        ...         self.context.forward(record)
        >>> preview(lambda s: s.process(Twice), ("a", 1))
        [('a', 1), ('a', 1)]
        """
        name = self.graph.name_or_generated(named, "KSTREAM-PROCESSOR-")
        return self._rekeyed(self._add_process(name, supplier, stores, values_only=False))

    def process_values(
        self,
        supplier: Callable[[], Processor[K, V, K, V1]],
        *stores: str,
        named: NameLike = None,
    ) -> "KStream[K, V1]":
        """Process each record by a processor that does not change its key.

        >>> class Negated(Processor):
        ...     def process(self, record):
        ...         self.context.forward(record.with_value(-record.value))
        >>> preview(lambda s: s.process_values(Negated), ("a", 1))
        [('a', -1)]
        """
        name = self.graph.name_or_generated(named, "KSTREAM-PROCESSVALUES-")
        return self._revalued(self._add_process(name, supplier, stores, values_only=True))

    # --- for the other modules of the DSL

    @classmethod
    def source(
        cls, graph: GraphBuilder, topics: tuple[str, ...], consumed: Consumed[K, V]
    ) -> "KStream[K, V]":
        """Return the stream of one or several topics."""
        name = graph.named(consumed, "KSTREAM-SOURCE-")
        source = graph.add_source(source_node(name, topics, consumed))
        return cls(graph, source, *consumed.serdes())

    def repartitioned(
        self, name: InternalName, options: Serialized[Any, Any], *, keep_null_keys: bool = False
    ) -> "KStream[K, V]":
        """Return the stream repartitioned by its current key, with the serdes of ``options``."""
        serdes = options.serdes(self.key_serde, self.value_serde)
        with_serdes: Repartitioned[Any, Any] = Repartitioned.with_(*serdes)
        source = self.graph.repartition(self.name, name, with_serdes, keep_null_keys=keep_null_keys)
        return KStream(self.graph, source, *serdes)

    def at(self, name: str) -> "KStream[K, V]":
        """Return the stream behind a node that changes neither keys nor the type of values."""
        return KStream(self.graph, name, self.key_serde, self.value_serde, rekeyed=self.rekeyed)

    def _add(
        self,
        operation: Any,
        prefix: str,
        function: Callable[..., Any],
        named: NameLike,
        *,
        with_key: bool = False,
    ) -> str:
        name = self.graph.named(named, prefix)
        node = Stateless(name=name, operation=operation, function=function, with_key=with_key)
        return self.graph.add(replace(node, parents=(self.name,)))

    def _add_process(
        self, name: str, supplier: Callable[[], Any], stores: tuple[str, ...], *, values_only: bool
    ) -> str:
        self.graph.check_stores(stores)
        node = Process(name=name, stores=stores, supplier=supplier, values_only=values_only)
        return self.graph.add(replace(node, parents=(self.name,)))


def source_node(name: str, topics: tuple[str, ...], consumed: Consumed[Any, Any]) -> Source:
    """Return the node that reads topics with these options."""
    return Source(
        name=name,
        topics=topics,
        key_serde=consumed.key_serde,
        value_serde=consumed.value_serde,
        timestamp_extractor=consumed.timestamp_extractor,
        offset_reset=consumed.offset_reset,
    )
