"""StreamsBuilder: the entry point of the DSL."""

from dataclasses import replace
from typing import Any, overload

from thulawa.errors import ConfigurationError, TopologyError
from thulawa.state.specs import StoreSpec
from thulawa.streams.graph_builder import ExplicitNames, GraphBuilder
from thulawa.streams.kip28 import BuilderAliases
from thulawa.streams.kstream import KStream, source_node
from thulawa.streams.ktable import GlobalKTable, KTable
from thulawa.streams.operator_options import Consumed, Materialized, or_default
from thulawa.streams.type_variables import K, V
from thulawa.topology.nodes import GlobalTable, Table
from thulawa.topology.topology import Topology


class StreamsBuilder(BuilderAliases):
    """Read topics as streams and tables; ``build`` returns the topology.

    ``explicit_names`` allows generated names of stores and repartitions ("off"), warns about them
    ("warn") or rejects them ("error").

    >>> builder = StreamsBuilder()
    >>> builder.stream("in").map_values(lambda v: v + 1).to("out")
    >>> topology = builder.build()
    """

    def __init__(self, *, explicit_names: ExplicitNames = "off") -> None:
        if explicit_names not in ("off", "warn", "error"):
            raise ConfigurationError(
                f"explicit_names={explicit_names!r} is not supported; use 'off', 'warn' or 'error'"
            )
        self._graph = GraphBuilder(explicit_names)

    @overload
    def stream(self, topics: str | list[str]) -> KStream[Any, Any]: ...

    @overload
    def stream(self, topics: str | list[str], consumed: Consumed[K, V]) -> KStream[K, V]: ...

    def stream(
        self, topics: str | list[str], consumed: Consumed[Any, Any] | None = None
    ) -> KStream[Any, Any]:
        """Read one or several topics as a stream.

        >>> builder = StreamsBuilder()
        >>> builder.stream(["orders", "returns"]).to("both")
        >>> builder.build().subtopologies()[0].sources[0].topics
        ('orders', 'returns')
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise ConfigurationError("a stream needs at least one topic")
        return KStream.source(self._graph, names, or_default(consumed, Consumed))

    @overload
    def table(
        self, topic: str, *, materialized: Materialized[Any, Any] | None = None
    ) -> KTable[Any, Any]: ...

    @overload
    def table(
        self,
        topic: str,
        consumed: Consumed[K, V],
        materialized: Materialized[K, V] | None = None,
    ) -> KTable[K, V]: ...

    def table(
        self,
        topic: str,
        consumed: Consumed[Any, Any] | None = None,
        materialized: Materialized[Any, Any] | None = None,
    ) -> KTable[Any, Any]:
        """Read a topic as a table: each record is an update of its key.

        >>> preview(lambda table: table.map_values(lambda v: v * 2), ("a", 1), ("a", None))
        [('a', 2), ('a', None)]
        """
        graph, options = self._graph, or_default(consumed, Consumed)
        stored = or_default(materialized, Materialized).with_defaults(None, options.value_serde)
        store = graph.store_name(stored, f"{topic}-")
        source_name = graph.named(options, "KSTREAM-SOURCE-", "-source")
        name = graph.named(options, "KTABLE-SOURCE-")
        source = graph.add_source(source_node(source_name, (topic,), options))
        table = Table(name=name, parents=(source,), operation="source")
        graph.source_table(table, store, stored)
        return KTable(graph, name, *options.serdes())

    @overload
    def global_table(
        self, topic: str, *, materialized: Materialized[Any, Any] | None = None
    ) -> GlobalKTable[Any, Any]: ...

    @overload
    def global_table(
        self,
        topic: str,
        consumed: Consumed[K, V],
        materialized: Materialized[K, V] | None = None,
    ) -> GlobalKTable[K, V]: ...

    def global_table(
        self,
        topic: str,
        consumed: Consumed[Any, Any] | None = None,
        materialized: Materialized[Any, Any] | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Read a topic as a table that is complete in every task.

        >>> def program(s, global_table):
        ...     return s.join(global_table, lambda k, v: "rate", lambda v, rate: (v, rate))
        >>> preview(program, ("global_table", "rate", 2), ("s", "k", 10))
        [('k', [10, 2])]
        """
        graph, options = self._graph, or_default(consumed, Consumed)
        stored = or_default(materialized, Materialized).with_defaults(None, options.value_serde)
        if stored.history is not None:
            raise TopologyError("a global table cannot be versioned")
        store = graph.store_name(stored, f"{topic}-")
        source = graph.named(options, "KSTREAM-SOURCE-", "-source")
        name = graph.named(options, "KTABLE-SOURCE-")
        graph.add_store(store, stored)
        table = GlobalTable(name=name, stores=(store.name,), source=source, topic=topic)
        key_serde, value_serde = options.serdes()
        graph.add(replace(table, key_serde=key_serde, value_serde=value_serde))
        return GlobalKTable(graph, name, store.name)

    def add_state_store(self, store: StoreSpec) -> "StreamsBuilder":
        """Add a store that processors access by name.

        >>> from thulawa.streams import Processor
        >>> from thulawa.testing import TopologyTestDriver
        >>> builder = StreamsBuilder().add_state_store(StoreSpec(name="seen"))
        >>> class First(Processor):
        ...     def process(self, record):
        ...         if self.context.state_store("seen").put_if_absent(record.key, True) is None:
        ...             self.context.forward(record)
        >>> builder.stream("in").process(First, "seen").to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.create_input_topic("in").pipe_key_value_list([("a", 1), ("a", 2), ("b", 3)])
        ...     driver.create_output_topic("out").read_key_values_to_list()
        [('a', 1), ('b', 3)]
        """
        self._graph.topology.add_store(store)
        return self

    def build(self) -> Topology:
        """Return a copy of the topology built so far."""
        topology = self._graph.topology
        if not topology.nodes:
            raise TopologyError("the topology is empty: it reads no topic")
        return topology.copy()
