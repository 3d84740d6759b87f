"""Turn the frozen nodes of a sub-topology into functions that call each other.

Children are built before their parents, so each function holds its children's functions; no node
is looked up while records are processed.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from thulawa.core.names import check_name
from thulawa.core.records import Headers, RecordMetadata
from thulawa.errors import ProcessingError, SerializationError, StreamError
from thulawa.runtime import aggregates, join_nodes, tables, windowed_aggregates
from thulawa.runtime.async_nodes import AsyncNode
from thulawa.runtime.blocks import ForwardBlock
from thulawa.runtime.context import DirectCollector, Failed, Forward, TaskContext, Wiring
from thulawa.runtime.foreign_key_steps import foreign_key_step
from thulawa.runtime.handlers import ErrorRecord, as_stream_error
from thulawa.runtime.levels import Levels
from thulawa.runtime.processors import process
from thulawa.runtime.stateless import branch, stateless, stateless_blocks
from thulawa.topology import nodes
from thulawa.topology.functions import topic_arguments
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows

_NO_METADATA = RecordMetadata("", -1, -1)


class Graph:
    """The running nodes of a task."""

    def __init__(self, group: SubTopology, topology: Topology, context: TaskContext) -> None:
        self._context = context
        self.levels = Levels(group, topology, context)
        self._functions: dict[str, Forward] = {}
        self._closers: list[Callable[[], None]] = []
        self.async_nodes: list[AsyncNode] = []  # parents before children
        self._nodes = topology.nodes
        self._children: dict[str, list[str]] = {node.name: [] for node in group.nodes}
        for node in group.nodes:
            for parent in node.parents:
                self._children[parent].append(node.name)
        for node in reversed(group.nodes):
            children = {
                name: self.levels.connect(node, self._nodes[name], self._functions[name])
                for name in self._children[node.name]
            }
            self._functions[node.name] = self._build(node, children)

    def entry(self, source: nodes.Source) -> Forward:
        """Return the function that processes the records of a source."""
        return self._functions[source.name]

    def block_entry(self, source: nodes.Source) -> ForwardBlock | None:
        """Return the function that processes blocks of a source; None: only single records."""
        if self.levels.follows_time:
            return None  # other processors must observe the stream time of every record
        chain = self._chain(source)
        if any(self.levels.of(node) for node in chain):
            return None
        if not any(isinstance(node, nodes.Aggregate) for node in chain):
            return None  # nothing to gain: the cost is that of the user's functions
        sink, collector = chain.pop(), self._context.collector
        if not (isinstance(sink, nodes.Sink) and isinstance(sink.topic, str)):
            return None
        forward = None
        if isinstance(collector, DirectCollector):
            forward = collector.block_sender(sink, sink.topic)
        for kind, same in groupby(reversed(chain), type):
            if forward is None:
                return None
            forward = self._block_function(kind, list(same)[::-1], forward)
        return forward

    def _chain(self, source: nodes.Source) -> list[nodes.Node]:
        """Return the nodes below a source if they are a single chain, else nothing."""
        chain: list[nodes.Node] = []
        below = self._children[source.name]
        while len(below) == 1:
            chain.append(self._nodes[below[0]])
            below = self._children[below[0]]
        return [] if below else chain

    def _block_function(
        self, kind: type[nodes.Node], same: list[Any], forward: ForwardBlock
    ) -> ForwardBlock | None:
        if kind is nodes.Stateless:
            pairs = [(node, self._failed(node)) for node in same]
            return stateless_blocks(pairs, self._context, forward)
        (node, *others) = same
        if kind is nodes.Aggregate and node.window is None and not node.caching and not others:
            each, failed = self._functions[node.name], self._failed(node)
            return aggregates.aggregate_blocks(node, self._context, each, forward, failed)
        return None

    def close(self) -> None:
        """Close all processors, in reverse order; an error does not keep the others open."""
        with ExitStack() as closing:
            for close in self._closers:
                closing.callback(close)

    def _build(self, node: nodes.Node, children: dict[str, Forward]) -> Forward:
        number = self.levels.of(node)
        level = self.levels.all[number]
        forward, failed = _to_all(list(children.values())), self._failed(node)
        punctuations, closers = level.punctuations, self._closers
        wiring = Wiring(self._context, forward, failed, children, punctuations, closers)
        if isinstance(node, nodes.AsyncCall):
            async_node = AsyncNode(node, self.levels.all[number + 1], wiring)
            self.async_nodes.insert(0, async_node)
            level.async_nodes.insert(0, async_node)
            return async_node.process
        function = _BUILDERS[type(node)](node, wiring)
        return _guarded(function, failed) if _needs_guard(node) else function

    def _failed(self, node: nodes.Node) -> Failed:
        context = self._context
        when = f"in the function given at {node.where or 'the topology'}"

        def failed(
            error: Exception, key: Any, value: Any, timestamp: int, headers: Headers
        ) -> None:
            if isinstance(error, StreamError) and error.node not in (None, node.name):
                raise error  # of a child node, whose handler has already been called
            error = as_stream_error(error, ProcessingError, when)
            position = context.topic, context.partition, context.offset
            error.node = node.name
            error.topic, error.partition, error.offset = position
            raw = context.raw()
            if raw is not None:
                _, timestamp, key, value, headers = raw
            record = ErrorRecord(node.name, *position, key, value, timestamp, headers)
            context.handle(context.handlers.processing, error, record)

        return failed


def _to_all(children: list[Forward]) -> Forward:
    if len(children) == 1:
        return children[0]

    def forward(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for child in children:
            child(key, value, timestamp, headers)

    return forward


def _needs_guard(node: nodes.Node) -> bool:
    """Return whether the function of a node does not handle the errors of its stores itself."""
    match node:
        case nodes.Aggregate(window=None | TimeWindows()) | nodes.TableAggregate():
            return False
        case nodes.LookupJoin(buffer=None) | nodes.TableJoin() | nodes.Process():
            return False
        case nodes.Table(supplier=supplier) if supplier is not None:
            return False
        case _:
            return bool(node.stores)


def _guarded(function: Forward, failed: Failed) -> Forward:
    """Pass the error of a key or value that a store cannot hold to the handler."""

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            function(key, value, timestamp, headers)
        except SerializationError as error:
            failed(error, key, value, timestamp, headers)

    return process


def _sink(node: nodes.Sink, wiring: Wiring) -> Forward:
    context, failed, collector = wiring.context, wiring.failed, wiring.context.collector
    topic, send = node.topic, collector.send
    if isinstance(topic, str):
        direct = collector.sender(node, topic) if isinstance(collector, DirectCollector) else None
        if direct is not None:
            return direct
        if node.internal:
            return _guarded(partial(send, node, topic), failed)
        return lambda key, value, timestamp, headers: send(
            node, topic, key, value, timestamp, headers
        )

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


def _aggregate(node: nodes.Aggregate, wiring: Wiring) -> Forward:
    if node.caching:
        wiring = replace(wiring, forward=aggregates.cached(node, wiring))
    match node.window:
        case None:
            return aggregates.aggregate(node, wiring)
        case SessionWindows():
            return windowed_aggregates.session_aggregate(node, wiring)
        case SlidingWindows():
            return windowed_aggregates.sliding_aggregate(node, wiring)
        case _:
            return windowed_aggregates.time_aggregate(node, wiring)


_BUILDERS: dict[type[nodes.Node], Callable[[Any, Wiring], Forward]] = {
    nodes.Source: lambda _, wiring: wiring.forward,
    nodes.Sink: _sink,
    nodes.Stateless: stateless,
    nodes.Branch: branch,
    nodes.Process: process,
    nodes.Aggregate: _aggregate,
    nodes.PartialAggregate: aggregates.partial_aggregate,
    nodes.Table: tables.table,
    nodes.TableGrouping: tables.table_grouping,
    nodes.TableAggregate: tables.table_aggregate,
    nodes.Suppress: tables.suppress,
    nodes.JoinBuffer: join_nodes.join_buffer,
    nodes.StreamJoin: join_nodes.stream_join,
    nodes.LookupJoin: join_nodes.lookup_join,
    nodes.TableJoin: join_nodes.table_join,
    nodes.ForeignKeyStep: foreign_key_step,
}
