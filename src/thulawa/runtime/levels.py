"""Levels: restore the input order behind async nodes.

The calls of an async node finish in any order. Operators with state or time must not observe that:
a result that overtakes another would advance stream time past a record that is still in flight.
The nodes of a task are therefore divided into levels. Level 0 reads the partition queues; level
n + 1 begins behind the async nodes of level n. Everything that enters a level, results of calls as
well as records that passed no async node, enters it in the order in which level n processed its
records and with the stream time of that moment, interleaved with the punctuations of the level's
processors. Results are the same as if every call had returned at once.

Nodes that share a store are on one level: otherwise one side of a join would run ahead.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from thulawa.core.records import Headers
from thulawa.runtime.blocks import RawRecord
from thulawa.runtime.context import Forward, TaskContext
from thulawa.runtime.punctuation import Punctuations
from thulawa.topology.nodes import (
    AsyncCall,
    Branch,
    GlobalTable,
    Node,
    Process,
    Sink,
    Source,
    Stateless,
    Table,
)
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

if TYPE_CHECKING:
    from thulawa.runtime.async_nodes import AsyncNode

# nodes that do not depend on the order of records of different keys
_ORDERLESS = (Stateless, Branch, AsyncCall)


class Deferred:
    """A call that is deferred until its level runs, and the record it belongs to."""

    __slots__ = ("call", "offset", "partition", "raw", "stream_time", "topic")

    def __init__(self, context: TaskContext) -> None:
        self.topic, self.partition, self.offset = context.topic, context.partition, context.offset
        self.raw: RawRecord | None = context.raw()
        self.stream_time = context.stream_time
        self.call: Callable[[], None] | None = None


class Level:
    """The nodes behind the same number of async nodes: their punctuations and deferred calls."""

    def __init__(self, context: TaskContext, *, in_order: bool) -> None:
        self.punctuations = Punctuations()
        self.following: Level | None = None
        self.async_nodes: list[AsyncNode] = []  # of this level
        self._context = context
        self._in_order = in_order
        self._deferred: deque[Deferred] = deque()

    def reserve(self) -> Deferred:
        """Reserve a slot in the order of this level, for a call that is not known yet."""
        slot = Deferred(self._context)
        if self._in_order:
            self._deferred.append(slot)
        if self._context.in_flight is not None:
            self._context.in_flight.begin(slot.topic, slot.partition, slot.offset)
        return slot

    def complete(self, slot: Deferred, call: Callable[[], None]) -> None:
        """Set the call of a slot; it is made when the level runs, or now if order is free."""
        if self._in_order:
            slot.call = call
        else:
            self.call_now(slot, call)
            self._finish(slot)

    def fail(self, slot: Deferred, call: Callable[[], None]) -> None:
        """Make the call of a failed record at once; its slot stays empty."""
        self.call_now(slot, call)
        slot.call = _nothing
        self._finish(slot)

    def _finish(self, slot: Deferred) -> None:
        if self._context.in_flight is not None:
            self._context.in_flight.end(slot.topic, slot.partition, slot.offset)

    def call_now(self, slot: Deferred, call: Callable[[], None]) -> None:
        """Make a call for the record of a slot at once."""
        context = self._context
        context.topic, context.partition = slot.topic, slot.partition
        context.offset = slot.offset
        with context.attribute_errors_to(slot.raw):
            call()

    def defer(self, call: Callable[[], None]) -> None:
        """Add a call at the end of this level's order."""
        self.complete(self.reserve(), call)

    def deferring(self, forward: Forward) -> Forward:
        """Return a function that defers records for a node of this level."""
        if not self._in_order:
            return forward

        def deferred(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            self.defer(partial(forward, key, value, timestamp, headers))

        return deferred

    def punctuate(self) -> None:
        """Fire the punctuations due by stream time, on this level and then on the next."""
        context = self._context
        if context.stream_time >= self.punctuations.next_stream_time:
            context.topic = None
            self.punctuations.fire("stream_time", context.stream_time)
        if self.following is not None:
            self.following.defer(self.following.punctuate)

    def run(self) -> None:
        """Make the deferred calls, each with the stream time of its record."""
        deferred, self._deferred = self._deferred, deque()
        self._make_calls(deferred)

    def run_ready(self) -> None:
        """Make the deferred calls up to the first one that is not known yet."""
        ready = []
        while self._deferred and self._deferred[0].call is not None:
            ready.append(self._deferred.popleft())
        if ready:
            self._make_calls(ready)

    def _make_calls(self, deferred: Iterable[Deferred]) -> None:
        context = self._context
        stream_time = context.stream_time
        try:
            for slot in deferred:
                context.stream_time = slot.stream_time
                if slot.call is _nothing:  # it has failed, and is finished
                    continue
                if slot.call is not None:
                    self.call_now(slot, slot.call)
                self._finish(slot)
        finally:
            context.stream_time = stream_time


def _nothing() -> None:
    """Do nothing."""


class Levels:
    """All levels of a task.

    ``follows_time``: a processor behind level 0 may schedule punctuations, so its level must
    observe the stream time of every record, also of those that do not reach it.
    """

    def __init__(self, group: SubTopology, topology: Topology, context: TaskContext) -> None:
        self._of = node_levels(group.nodes)
        in_order = depends_on_order(group, topology)
        count = max((self.of(n) + isinstance(n, AsyncCall) for n in group.nodes), default=0) + 1
        self.all = [Level(context, in_order=in_order) for _ in range(count)]
        self.follows_time = in_order and any(
            self.of(node) > 0 and may_punctuate(node) for node in group.nodes
        )
        if self.follows_time:
            for level, following in zip(self.all, self.all[1:], strict=False):
                level.following = following

    def of(self, node: Node) -> int:
        """Return the number of a node's level."""
        return self._of[node.name]

    def connect(self, parent: Node, child: Node, forward: Forward) -> Forward:
        """Return the function that passes records of ``parent`` to ``child`` (``forward``)."""
        first = self.of(parent) + isinstance(parent, AsyncCall)
        for number in range(self.of(child), first, -1):
            forward = self.all[number].deferring(forward)
        return forward

    @property
    def next_wall_clock_time(self) -> int:
        """The wall-clock time at which the next punctuation is due."""
        return min(level.punctuations.next_wall_clock_time for level in self.all)

    def run_ready(self) -> None:
        """Make the calls whose results have arrived, level by level."""
        for level in self.all[1:]:
            level.run_ready()

    async def drain(self) -> None:
        """Process the collected records of all async nodes, level by level."""
        for level, following in zip(self.all, self.all[1:], strict=False):
            for node in level.async_nodes:
                await node.drain()
            following.run()

    def due(self) -> dict[str, int | None]:
        """Return when each punctuation is due, as `Punctuations.due` does."""
        return {name: time for level in self.all for name, time in level.punctuations.due().items()}


def depends_on_order(group: SubTopology, topology: Topology) -> bool:
    """Return whether anything behind the group's async nodes depends on the order of records.

    Nodes with state or time do, and topics that the application itself reads.
    """
    nodes = topology.nodes.values()
    read = {topic for node in nodes if isinstance(node, Source) for topic in node.topics}
    read |= {node.topic for node in nodes if isinstance(node, GlobalTable)}
    behind: set[str] = set()
    for node in group.nodes:
        parents = [topology.nodes[name] for name in node.parents]
        if any(parent.name in behind or isinstance(parent, AsyncCall) for parent in parents):
            behind.add(node.name)
            if not _is_orderless(node, read):
                return True
    return False


def _is_orderless(node: Node, read: set[str]) -> bool:
    if isinstance(node, Sink):
        return isinstance(node.topic, str) and node.topic not in read
    return isinstance(node, _ORDERLESS) and not may_punctuate(node)


def may_punctuate(node: Node) -> bool:
    """Return whether a node may schedule punctuations."""
    if isinstance(node, AsyncCall):
        return node.operation == "process"
    return isinstance(node, Process) or (isinstance(node, Table) and node.supplier is not None)


def node_levels(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the level of each node, by name; ``nodes`` has parents before children.

    A store that is used before and behind the same async node does not put its users on one
    level: they keep the levels that follow from their parents.
    """
    shared: dict[str, set[str]] = {}
    for node in nodes:
        if not isinstance(node, AsyncCall):  # its calls access the store in any order
            for store in node.stores:
                shared.setdefault(store, set()).add(node.name)
    async_count = sum(isinstance(node, AsyncCall) for node in nodes)
    together = [users for users in shared.values() if len(users) > 1]
    behind_async = _before_async(nodes)
    while True:
        levels = _relaxed(nodes, together, async_count)
        beyond = {name for name, level in levels.items() if level > async_count}
        if not beyond:
            return levels
        raised = [users for users in together if users & beyond]
        direct = [users for users in raised if any(behind_async[name] & users for name in users)]
        together = [users for users in together if users not in (direct or raised)]


def _before_async(nodes: Sequence[Node]) -> dict[str, set[str]]:
    """Return the nodes that reach each node through an async node."""
    above: dict[str, set[str]] = {}
    behind_async: dict[str, set[str]] = {}
    for node in nodes:
        above[node.name] = set(node.parents).union(*(above[name] for name in node.parents))
        behind_async[node.name] = set().union(*(behind_async[name] for name in node.parents))
        for parent in nodes:
            if parent.name in node.parents and isinstance(parent, AsyncCall):
                behind_async[node.name] |= above[parent.name]
    return behind_async


def _relaxed(
    nodes: Sequence[Node], together: Iterable[set[str]], async_count: int
) -> dict[str, int]:
    """Raise levels until all constraints hold, or one exceeds the number of async nodes."""
    kinds = {node.name: node for node in nodes}
    levels = dict.fromkeys(kinds, 0)
    before: dict[str, int] = {}
    while levels != before and max(levels.values(), default=0) <= async_count:
        before = dict(levels)
        for node in nodes:
            for parent in node.parents:
                after = levels[parent] + isinstance(kinds[parent], AsyncCall)
                levels[node.name] = max(levels[node.name], after)
        for users in together:
            highest = max(levels[name] for name in users)
            levels |= dict.fromkeys(users, highest)
    return levels
