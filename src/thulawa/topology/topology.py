"""The graph of a stream program: nodes by name, stores by name, and how they hang together.

The Processor API adds nodes one by one; the DSL does the same underneath. Nodes are frozen,
so a topology can be handed to a renderer, a test driver or Spark without being copied.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, Self

from thulawa.core.callers import caller
from thulawa.core.errors import ConfigurationError, TopologyError
from thulawa.core.names import check_name
from thulawa.core.serdes import Serde
from thulawa.engine import Options
from thulawa.state.specs import StoreSpec
from thulawa.topology.describe import describe
from thulawa.topology.diagrams import to_dot, to_json, to_mermaid
from thulawa.topology.functions import check_functions
from thulawa.topology.nodes import (
    AsyncCall,
    GlobalTable,
    Node,
    Process,
    Sink,
    Source,
    TimestampExtractor,
)
from thulawa.topology.processor import AsyncProcessor, Processor
from thulawa.topology.state_change import (
    StateChange,
    inserted_after,
    removed,
    replaced,
)
from thulawa.topology.subtopologies import SubTopology, subtopologies

__all__ = ["Topology"]


class Topology:
    """A program of sources, processors, sinks and stores.

    >>> from thulawa.topology.processor import Processor
    >>> class Upper(Processor):
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value.upper()))
    >>> topology = Topology()
    >>> _ = topology.add_source("IN", "names").add_processor("UPPER", Upper, "IN")
    >>> _ = topology.add_sink("OUT", "shouted", "UPPER")
    >>> print(topology.describe())
    Topologies:
       Sub-topology: 0
        Source: IN (topics: [names])
          --> UPPER
        Processor: UPPER (stores: [])
          --> OUT
          <-- IN
        Sink: OUT (topic: shouted)
          <-- UPPER
    <BLANKLINE>
    <BLANKLINE>
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._stores: dict[str, StoreSpec] = {}

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name, parents before children."""
        return MappingProxyType(self._nodes)

    @property
    def stores(self) -> Mapping[str, StoreSpec]:
        """All stores by name."""
        return MappingProxyType(self._stores)

    # --- the Processor API

    def add_source(
        self,
        name: str,
        *topics: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: Literal["earliest", "latest"] | None = None,
    ) -> Self:
        """Read topics."""
        if not topics:
            raise ConfigurationError(f"source {name!r} needs at least one topic")
        return self.add(
            Source(
                name=name,
                topics=topics,
                key_serde=key_serde,
                value_serde=value_serde,
                timestamp_extractor=timestamp_extractor,
                offset_reset=offset_reset,
                where=caller(),
            )
        )

    def add_processor(
        self, name: str, supplier: Callable[[], Processor[Any, Any, Any, Any]], *parents: str
    ) -> Self:
        """Add a processor; ``supplier`` is its class, or a function that makes one per task."""
        if not parents:
            raise ConfigurationError(f"processor {name!r} needs at least one parent")
        return self.add(Process(name=name, supplier=supplier, parents=parents, where=caller()))

    def add_async_processor(
        self,
        name: str,
        supplier: Callable[[], AsyncProcessor[Any, Any, Any, Any]],
        *parents: str,
        options: Options | None = None,
    ) -> Self:
        """Add a processor that may wait: many keys at once, each in order, by the engine's options.

        >>> from thulawa.testing import TopologyTestDriver
        >>> class Echo(AsyncProcessor):
        ...     async def process(self, record):
        ...         self.context.forward(record)
        >>> topology = Topology().add_source("IN", "in").add_async_processor("ECHO", Echo, "IN")
        >>> with TopologyTestDriver(topology.add_sink("OUT", "out", "ECHO")) as driver:
        ...     driver.create_input_topic("in").pipe_input("k", 1)
        ...     driver.create_output_topic("out").read_key_value()
        ('k', 1)
        """
        if not parents:
            raise ConfigurationError(f"processor {name!r} needs at least one parent")
        return self.add(
            AsyncCall(
                name=name,
                operation="process",
                function=supplier,
                options=replace(options or Options(), name=name, on_error="column"),
                parents=parents,
                where=caller(),
            )
        )

    def add_sink(
        self,
        name: str,
        topic: str | Callable[..., str],
        *parents: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partitioner: Callable[..., int] | None = None,
    ) -> Self:
        """Write to a topic, or to the one that ``topic(key, value)`` names.

        A function of three is also given the record's metadata, as `KStream.to` has it.
        """
        if not parents:
            raise ConfigurationError(f"sink {name!r} needs at least one parent")
        return self.add(
            Sink(
                name=name,
                topic=topic,
                parents=parents,
                key_serde=key_serde,
                value_serde=value_serde,
                partitioner=partitioner,
                where=caller(),
            )
        )

    def add_state_store(self, store: StoreSpec, *processors: str) -> Self:
        """Add a store and connect it to processors."""
        self.add_store(store)
        for processor in processors:
            self.connect(processor, store.name)
        return self

    def connect(self, processor: str, *stores: str) -> Self:
        """Let a processor use stores."""
        node = self.node(processor)
        if not isinstance(node, Process | AsyncCall):
            raise ConfigurationError(f"{processor!r} is no processor: it has its own stores")
        for store in stores:
            if store not in self._stores:
                raise TopologyError(f"there is no store {store!r}", where=caller())
        merged = tuple(dict.fromkeys((*node.stores, *stores)))
        self._nodes[processor] = replace(node, stores=merged)
        return self

    # --- the graph

    def add(self, node: Node) -> Self:
        """Add a node whose parents are there already."""
        check_name(node.name, "node")
        check_functions(node)
        for topic in _fixed_topics(node):
            check_name(topic, "topic")
        if isinstance(node, Source | GlobalTable):
            self._check_unread(node)
        if node.name in self._nodes:
            raise TopologyError(
                f"there is a node {node.name!r} already, made at {self._nodes[node.name].where}; "
                "give this one another name",
                where=node.where,
            )
        for parent in node.parents:
            if isinstance(self.node(parent, node.where), Sink):
                raise TopologyError(f"{parent!r} is a sink: nothing follows it", where=node.where)
        self._nodes[node.name] = node
        return self

    def _check_unread(self, source: Source | GlobalTable) -> None:
        topics = set(_fixed_topics(source))
        for node in self._nodes.values():
            if isinstance(node, Source | GlobalTable) and topics & set(_fixed_topics(node)):
                raise TopologyError(
                    f"{sorted(topics & set(_fixed_topics(node)))} is read already by "
                    f"{node.name!r}; read it once, and let several nodes follow",
                    where=source.where,
                )

    def add_store(self, store: StoreSpec) -> None:
        """Add a store."""
        check_name(store.name, "store")
        if store.name in self._stores:
            raise TopologyError(
                f"there is a store {store.name!r} already; give this one another name",
                where=caller(),
            )
        self._stores[store.name] = store

    def put(self, node: Node) -> None:
        """Put a changed node in the place of the one of its name."""
        self.node(node.name)
        self._nodes[node.name] = node

    def node(self, name: str, where: str | None = None) -> Node:
        """Give a node by name."""
        node = self._nodes.get(name)
        if node is None:
            raise TopologyError(f"there is no node {name!r}", where=where)
        return node

    def children(self, name: str) -> list[Node]:
        """Give the nodes that follow a node."""
        return [node for node in self._nodes.values() if name in node.parents]

    def subtopologies(self) -> tuple[SubTopology, ...]:
        """Cut the graph into the parts that run as tasks of their own."""
        return subtopologies(self._nodes)

    # --- changes between runs

    def replace(self, name: str, /, **changes: Any) -> "Topology":
        """Give a topology in which a node has another function, or another option.

        >>> from thulawa.streams import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").map_values(str.upper, named="loud").to("out")
        >>> edited = builder.build().replace("loud", function=str.lower)
        """
        nodes = replaced(self._nodes, name, changes)
        check_functions(nodes[name])
        return self._edited(nodes)

    def remove(self, name: str) -> "Topology":
        """Give a topology without a node; what followed it follows what came before it."""
        return self._edited(removed(self._nodes, name))

    def insert_after(self, parent: str, node: Node) -> "Topology":
        """Give a topology with one more node; what followed ``parent`` follows it."""
        check_name(node.name, "node")
        check_functions(node)
        return self._edited(inserted_after(self._nodes, parent, node))

    def copy(self) -> "Topology":
        """Give the same topology, to be changed on its own."""
        return self._edited(dict(self._nodes))

    def state_change(self, new: "Topology") -> StateChange:
        """Return which stores keep their state when ``new`` runs in the place of this topology."""
        from thulawa.topology.state_layout import compare_topologies  # noqa: PLC0415 it imports this module

        return compare_topologies(self, new)

    def _edited(self, nodes: dict[str, Node]) -> "Topology":
        edited = Topology()
        edited._nodes = nodes
        used = {store for node in nodes.values() for store in node.stores}
        ours = {store for node in self._nodes.values() for store in node.stores}
        edited._stores = {
            name: store for name, store in self._stores.items() if name in used or name not in ours
        }
        return edited

    # --- renderings

    def describe(self) -> str:
        """Describe the topology in Kafka's own text format."""
        return describe(self.subtopologies())

    def to_mermaid(self) -> str:
        """Draw the topology as a Mermaid flowchart."""
        return to_mermaid(self.subtopologies())

    def to_dot(self) -> str:
        """Draw the topology in Graphviz' language."""
        return to_dot(self.subtopologies())

    def to_json(self) -> str:
        """Give nodes and stores as JSON, for tools."""
        return to_json(self.subtopologies(), self._stores)


def _fixed_topics(node: Node) -> tuple[str, ...]:
    if isinstance(node, Source):
        return node.topics
    if isinstance(node, Sink | GlobalTable) and isinstance(node.topic, str):
        return (node.topic,)
    return ()
