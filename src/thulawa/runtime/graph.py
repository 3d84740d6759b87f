"""Turn the frozen nodes of a sub-topology into functions that call each other.

Children are built before their parents, so each function holds its children's functions; no node
is looked up while records are processed.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from thulawa.core.names import check_name
from thulawa.core.records import Headers, RecordMetadata
from thulawa.errors import (
    ProcessingError,
    SerializationError,
    StreamError,
)
from thulawa.runtime.aggregates import (
    aggregate,
    aggregate_blocks,
    cached,
    partial_aggregate,
    windowed_aggregate,
)
from thulawa.runtime.async_nodes import AsyncNode
from thulawa.runtime.blocks import ForwardBlock
from thulawa.runtime.context import DirectCollector, Failed, Forward, TaskContext
from thulawa.runtime.foreign_key_steps import foreign_key_step
from thulawa.runtime.levels import Levels
from thulawa.runtime.processors import NodeContext, process
from thulawa.runtime.session_aggregates import session_aggregate
from thulawa.runtime.sliding_aggregates import sliding_aggregate
from thulawa.runtime.stateless import branch, stateless, stateless_blocks
from thulawa.runtime.stream_joins import join_buffer, stream_join
from thulawa.runtime.suppress import suppress
from thulawa.runtime.table_joins import lookup_join, table_join
from thulawa.runtime.tables import table, table_aggregate, table_grouping, transformed_table
from thulawa.runtime.views import Views
from thulawa.topology.functions import topic_arguments
from thulawa.topology.nodes import (
    Aggregate,
    AsyncCall,
    Branch,
    ForeignKeyStep,
    JoinBuffer,
    LookupJoin,
    Node,
    PartialAggregate,
    Process,
    Sink,
    Source,
    Stateless,
    StreamJoin,
    Suppress,
    Table,
    TableAggregate,
    TableGrouping,
    TableJoin,
)
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows

_NO_METADATA = RecordMetadata("", -1, -1)


class Graph:
    """The running nodes of a task."""

    def __init__(
        self,
        group: SubTopology,
        topology: Topology,
        context: TaskContext,
    ) -> None:
        self._context = context
        self.levels = Levels(group, topology, context)
        self._views = Views(topology.nodes, context)
        self._functions: dict[str, Forward] = {}
        self._closers: list[Callable[[], None]] = []
        self.async_nodes: list[AsyncNode] = []  # parents before children
        self._nodes = nodes = topology.nodes
        self._children: dict[str, list[str]] = {node.name: [] for node in group.nodes}
        for node in group.nodes:
            for parent in node.parents:
                self._children[parent].append(node.name)
        for node in reversed(group.nodes):
            named = {
                name: self.levels.connect(node, nodes[name], self._functions[name])
                for name in self._children[node.name]
            }
            self._functions[node.name] = self._build(node, named)

    def entry(self, source: Source) -> Forward:
        """Return the function that processes the records of a source."""
        return self._functions[source.name]

    def block_entry(self, source: Source) -> ForwardBlock | None:
        """Return the function that processes blocks of a source; None: only single records."""
        if self.levels.follows_time:
            return None  # other processors must observe the stream time of every record
        chain = self._chain(source)
        if any(self.levels.of(node) for node in chain):
            return None
        if not any(isinstance(node, Aggregate) for node in chain):
            return None  # nothing to gain: the cost is that of the user's functions
        sink, collector = chain.pop(), self._context.collector
        if not (isinstance(sink, Sink) and isinstance(sink.topic, str)):
            return None
        forward = None
        if isinstance(collector, DirectCollector):
            forward = collector.block_sender(sink, sink.topic)
        for kind, nodes in groupby(reversed(chain), type):
            if forward is None:
                return None
            forward = self._block_function(kind, list(nodes)[::-1], forward)
        return forward

    def _chain(self, source: Source) -> list[Node]:
        """Return the nodes below a source if they are a single chain, else nothing."""
        chain: list[Node] = []
        below = self._children[source.name]
        while len(below) == 1:
            chain.append(self._nodes[below[0]])
            below = self._children[below[0]]
        return [] if below else chain

    def _block_function(
        self, kind: type[Node], nodes: list[Any], forward: ForwardBlock
    ) -> ForwardBlock | None:
        if kind is Stateless:
            pairs = [(node, self._failed(node)) for node in nodes]
            return stateless_blocks(pairs, self._context, forward)
        (node, *others) = nodes
        if kind is Aggregate and node.window is None and not node.caching and not others:
            each = self._functions[node.name]
            return aggregate_blocks(node, self._context, each, forward, self._failed(node))
        return None

    def close(self) -> None:
        """Close all processors, in reverse order; an error does not keep the others open."""
        with ExitStack() as closing:
            for close in self._closers:
                closing.callback(close)

    def _build(self, node: Node, children: dict[str, Forward]) -> Forward:
        forward = _to_all(list(children.values()))
        wiring = _Wiring(self._context, self._views, forward, self._failed(node), children)
        level = self.levels.of(node)
        punctuations = self.levels.all[level].punctuations
        own = NodeContext(node, self._context, punctuations, forward, children, wiring.failed)
        if isinstance(node, Table) and node.supplier is not None:
            return transformed_table(
                node, own, self._context, self._views, forward, wiring.failed, self._closers
            )
        if isinstance(node, Process | AsyncCall):
            if isinstance(node, Process):
                return process(node, own, wiring.failed, self._closers)
            following = self.levels.all[level + 1]
            async_node = AsyncNode(node, following, own, forward, wiring.failed)
            self.async_nodes.insert(0, async_node)
            self.levels.all[level].async_nodes.insert(0, async_node)
            return async_node.process
        function = _BUILDERS[type(node)](node, wiring)
        if node.stores and not _handles_store_errors(node):
            return _guarded(function, wiring.failed)
        return function

    def _failed(self, node: Node) -> Failed:
        context = self._context

        def failed(
            error: Exception, key: Any, value: Any, timestamp: int, headers: Headers
        ) -> None:
            if isinstance(error, StreamError) and error.node not in (None, node.name):
                raise error  # of a child node, whose handler has already been called
            if isinstance(error, StreamError):
                wrapped: StreamError = error
                wrapped.node = node.name
            else:
                where = node.where or "the topology"
                wrapped = ProcessingError(
                    f"{type(error).__name__} in the function given at {where}", node=node.name
                )
                wrapped.__cause__ = error
            wrapped.topic, wrapped.partition = context.topic, context.partition
            wrapped.offset = context.offset
            context.handle(wrapped, node, key, value, timestamp, headers)

        return failed


@dataclass(frozen=True, slots=True)
class _Wiring:
    """The arguments that the function of a node is built with."""

    context: TaskContext
    views: Views
    forward: Forward
    failed: Failed
    children: dict[str, Forward]


def _to_all(children: list[Forward]) -> Forward:
    if len(children) == 1:
        return children[0]
    if not children:
        return _ignore

    def forward(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for child in children:
            child(key, value, timestamp, headers)

    return forward


def _handles_store_errors(node: Node) -> bool:
    """Return whether the function of a node passes errors of its stores to the handler itself."""
    match node:
        case Aggregate(window=None | TimeWindows()) | TableAggregate():
            return True
        case LookupJoin(buffer=None) | TableJoin():
            return True
        case _:
            return False


def _guarded(function: Forward, failed: Failed) -> Forward:
    """Pass the error of a key or value that a store cannot hold to the handler."""

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            function(key, value, timestamp, headers)
        except SerializationError as error:
            failed(error, key, value, timestamp, headers)

    return process


def _ignore(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
    """No-op child."""


def _sink(node: Sink, context: TaskContext, failed: Failed) -> Forward:
    send = context.collector.send
    topic = node.topic
    if isinstance(topic, str):
        collector = context.collector
        direct = collector.sender(node, topic) if isinstance(collector, DirectCollector) else None
        if direct is not None:
            return direct
        if node.internal:
            return _guarded(partial(send, node, topic), failed)

        def to_topic(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            send(node, topic, key, value, timestamp, headers)

        return to_topic

    with_metadata = len(topic_arguments(topic)) > len(("key", "value"))

    def to_named(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            extra = (context.metadata() or _NO_METADATA,) if with_metadata else ()
            name = topic(key, value, *extra)
            _check_topic(name)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        return send(node, name, key, value, timestamp, headers)

    return to_named


@lru_cache(maxsize=1024)
def _check_topic(name: object) -> None:
    check_name(name, "topic")


def _aggregate(node: Aggregate, wiring: _Wiring) -> Forward:
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    if node.caching:
        forward = cached(node, context, forward)
    match node.window:
        case None:
            return aggregate(node, context, forward, failed)
        case SessionWindows():
            return session_aggregate(node, context, forward, failed)
        case SlidingWindows():
            return sliding_aggregate(node, context, forward, failed)
        case _:
            return windowed_aggregate(node, context, forward, failed)


_BUILDERS: dict[type[Node], Callable[[Any, _Wiring], Forward]] = {
    Source: lambda _, w: w.forward,
    Sink: lambda node, w: _sink(node, w.context, w.failed),
    Stateless: lambda node, w: stateless(node, w.forward, w.failed),
    Branch: lambda node, w: branch(node, w.children, w.failed),
    Aggregate: _aggregate,
    PartialAggregate: lambda n, w: partial_aggregate(n, w.context, w.forward, w.failed),
    Table: lambda node, w: table(node, w.context, w.views, w.forward, w.failed),
    TableGrouping: lambda node, w: table_grouping(node, w.context, w.views, w.forward, w.failed),
    TableAggregate: lambda node, w: table_aggregate(node, w.context, w.forward, w.failed),
    JoinBuffer: lambda node, w: join_buffer(node, w.context, w.forward),
    StreamJoin: lambda node, w: stream_join(node, w.context, w.forward, w.failed),
    LookupJoin: lambda node, w: lookup_join(node, w.context, w.views, w.forward, w.failed),
    TableJoin: lambda node, w: table_join(node, w.context, w.views, w.forward, w.failed),
    ForeignKeyStep: lambda n, w: foreign_key_step(n, w.context, w.views, w.forward, w.failed),
    Suppress: lambda node, w: suppress(node, w.context, w.forward),
}
