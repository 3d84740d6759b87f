"""The graph of a stream application: nodes and stores by name.

The Processor API adds nodes one by one, and so does the DSL internally. Nodes are frozen, so a
topology can be passed to a renderer, a test driver or Spark without a copy.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, Self

from thulawa.core.callers import topology_error
from thulawa.core.names import check_name
from thulawa.core.serdes import Serde
from thulawa.engine import Options
from thulawa.errors import ConfigurationError, TopologyError
from thulawa.state.specs import StoreSpec
from thulawa.topology.compatibility import StateChange
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
    Stateless,
    TimestampExtractor,
)
from thulawa.topology.processor import AsyncProcessor, Processor
from thulawa.topology.subtopologies import SubTopology, subtopologies


class Topology:
    """A graph of sources, processors, sinks and stores.

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
        """Add a source that reads topics."""
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
            )
        )

    def add_processor(
        self, name: str, supplier: Callable[[], Processor[Any, Any, Any, Any]], *parents: str
    ) -> Self:
        """Add a processor; ``supplier`` is its class, or a function that creates one per task."""
        if not parents:
            raise ConfigurationError(f"processor {name!r} needs at least one parent")
        return self.add(Process(name=name, supplier=supplier, parents=parents))

    def add_async_processor(
        self,
        name: str,
        supplier: Callable[[], AsyncProcessor[Any, Any, Any, Any]],
        *parents: str,
        options: Options | None = None,
    ) -> Self:
        """Add an async processor: many keys concurrently, each in order, by the engine's options.

        >>> class Echo(AsyncProcessor):
        ...     async def process(self, record):
        ...         self.context.forward(record)
        >>> topology = Topology().add_source("IN", "in").add_async_processor("ECHO", Echo, "IN")
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
        """Add a sink that writes to a topic, or to the one that ``topic(key, value)`` returns.

        A function of three arguments also gets the record's metadata, as in `KStream.to`.
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
            )
        )

    def add_state_store(self, store: StoreSpec, *processors: str) -> Self:
        """Add a store and connect it to processors."""
        self.add_store(store)
        for processor in processors:
            self.connect(processor, store.name)
        return self

    def connect(self, processor: str, *stores: str) -> Self:
        """Connect a processor to stores."""
        node = self.node(processor)
        if not isinstance(node, Process | AsyncCall):
            raise ConfigurationError(f"{processor!r} is not a processor: it has its own stores")
        for store in stores:
            if store not in self._stores:
                raise topology_error(f"there is no store {store!r}")
        merged = tuple(dict.fromkeys((*node.stores, *stores)))
        self._nodes[processor] = replace(node, stores=merged)
        return self

    # --- the graph

    def add(self, node: Node) -> Self:
        """Add a node; its parents must have been added before."""
        check_name(node.name, "node")
        check_functions(node)
        for topic in _fixed_topics(node):
            check_name(topic, "topic")
        if isinstance(node, Source | GlobalTable):
            self._check_unread(node)
        if node.name in self._nodes:
            raise TopologyError(
                f"the node {node.name!r} already exists, added at {self._nodes[node.name].where}; "
                "use another name",
                where=node.where,
            )
        for parent in node.parents:
            if isinstance(self.node(parent, node.where), Sink):
                raise TopologyError(f"{parent!r} is a sink: it has no output", where=node.where)
        self._nodes[node.name] = node
        return self

    def _check_unread(self, source: Source | GlobalTable) -> None:
        topics = set(_fixed_topics(source))
        for node in self._nodes.values():
            if isinstance(node, Source | GlobalTable) and topics & set(_fixed_topics(node)):
                raise TopologyError(
                    f"{sorted(topics & set(_fixed_topics(node)))} is already read by "
                    f"{node.name!r}; read it once, with several child nodes",
                    where=source.where,
                )

    def add_store(self, store: StoreSpec) -> None:
        """Add a store."""
        check_name(store.name, "store")
        if store.name in self._stores:
            raise topology_error(f"the store {store.name!r} already exists; use another name")
        self._stores[store.name] = store

    def put(self, node: Node) -> None:
        """Replace the node of the same name."""
        self.node(node.name)
        self._nodes[node.name] = node

    def node(self, name: str, where: str | None = None) -> Node:
        """Return a node by name."""
        node = self._nodes.get(name)
        if node is None:
            raise TopologyError(f"there is no node {name!r}", where=where)
        return node

    def children(self, name: str) -> list[Node]:
        """Return the child nodes of a node."""
        return [node for node in self._nodes.values() if name in node.parents]

    def subtopologies(self) -> tuple[SubTopology, ...]:
        """Return the sub-topologies, which run as separate tasks."""
        return subtopologies(self._nodes)

    # --- changes between runs

    def replace(self, name: str, /, **changes: Any) -> "Topology":
        """Return a topology in which fields of a node, such as its function, are replaced.

        >>> from thulawa.streams import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").map_values(str.upper, named="loud").to("out")
        >>> edited = builder.build().replace("loud", function=str.lower)
        """
        node = self._existing(name)
        for fixed in ("name", "parents", "stores"):
            if fixed in changes:
                raise TopologyError(
                    f"{fixed} of {name!r} cannot be replaced: remove the node and insert another"
                )
        if unknown := sorted(set(changes) - set(node.__dataclass_fields__)):
            raise TopologyError(f"{name!r} is a {type(node).__name__}, which has no {unknown[0]!r}")
        node = replace(node, **changes)
        check_functions(node)
        return self._edited({**self._nodes, name: node})

    def remove(self, name: str) -> "Topology":
        """Return a topology without a node; its children become those of its parents."""
        node = self._existing(name)
        others = [other for other in self._nodes.values() if other is not node]
        removable = isinstance(node, Stateless | Process | AsyncCall | Sink)
        if not removable or any(_refers_to(other, name) for other in others):
            raise TopologyError(
                f"{name!r} is part of a {type(node).__name__}, which has several nodes; "
                "build the topology without it"
            )
        return self._edited(
            {other.name: _reparented(other, name, node.parents) for other in others}
        )

    def insert_after(self, parent: str, node: Node) -> "Topology":
        """Return a topology with one more node between ``parent`` and its children."""
        check_name(node.name, "node")
        check_functions(node)
        self._existing(parent)
        if node.name in self._nodes:
            raise TopologyError(f"the node {node.name!r} already exists")
        if not isinstance(node, Stateless | Process | AsyncCall):
            raise TopologyError(
                f"a {type(node).__name__} cannot be inserted; build the topology anew"
            )
        nodes: dict[str, Node] = {}
        for other in self._nodes.values():
            nodes[other.name] = _reparented(other, parent, (node.name,))
            if other.name == parent:
                nodes[node.name] = replace(node, parents=(parent,))
        return self._edited(nodes)

    def _existing(self, name: str) -> Node:
        if name not in self._nodes:
            raise TopologyError(f"there is no node {name!r}; there are {list(self._nodes)}")
        return self._nodes[name]

    def copy(self) -> "Topology":
        """Return an independent copy."""
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
        """Return the topology in the text format of Kafka's ``describe()``."""
        return describe(self.subtopologies())

    def to_mermaid(self) -> str:
        """Return the topology as a Mermaid flowchart."""
        return to_mermaid(self.subtopologies())

    def to_dot(self) -> str:
        """Return the topology as a Graphviz graph."""
        return to_dot(self.subtopologies())

    def to_json(self) -> str:
        """Return nodes and stores as JSON."""
        return to_json(self.subtopologies(), self._stores)


def _fixed_topics(node: Node) -> tuple[str, ...]:
    if isinstance(node, Source):
        return node.topics
    if isinstance(node, Sink | GlobalTable) and isinstance(node.topic, str):
        return (node.topic,)
    return ()


def _reparented(node: Node, old: str, new: tuple[str, ...]) -> Node:
    if old not in node.parents:
        return node
    parents = [parent for name in node.parents for parent in (new if name == old else (name,))]
    return replace(node, parents=tuple(dict.fromkeys(parents)))


def _refers_to(node: Node, name: str) -> bool:
    """Return whether a node refers to another by name, other than as a parent."""
    fields = (getattr(node, field, None) for field in ("table", "other", "pair", "default"))
    return name in fields or name in getattr(node, "children", ())
