"""Levels: how many async nodes a record has passed, and the order in which it goes on.

Calls of an async node finish in any order. Operators that keep state or time must not see that:
a result that overtakes another would advance stream time past a record that is still in flight.
So the nodes of a task are divided into levels. Level 0 takes records from the queues; level n + 1
begins behind the async nodes of level n. Everything that enters a level, results of calls as well
as records that pass no async node, enters it in the order in which level n handled its records,
with the stream time of that moment, and punctuations of the level's processors in between. Results
are thus the same as if every call had returned at once.

Nodes that share a store are on one level: a join would otherwise see one side ahead of the other.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from thulawa.core.records import Headers
from thulawa.runtime.context import Forward, Raw, TaskContext
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

__all__ = ["Deferred", "Level", "Levels", "keeps_order", "node_levels"]

# nodes to which the order between keys makes no difference
_ORDERLESS = (Stateless, Branch, AsyncCall)


class Drainable(Protocol):
    """An async node."""

    async def settle(self) -> None:
        """Finish the records that the node has taken in."""


class Deferred:
    """A call that waits until its level runs, and the record that it is about."""

    __slots__ = ("call", "offset", "partition", "raw", "stream_time", "topic")

    def __init__(self, context: TaskContext) -> None:
        self.topic, self.partition, self.offset = context.topic, context.partition, context.offset
        self.raw: Raw | None = context.raw()
        self.stream_time = context.stream_time
        self.call: Callable[[], None] | None = None


class Level:
    """The nodes behind the same number of async nodes: their punctuations, and what waits."""

    def __init__(self, context: TaskContext, *, in_order: bool) -> None:
        self.punctuations = Punctuations()
        self.following: Level | None = None
        self.stages: list[Drainable] = []  # the async nodes of this level
        self._context = context
        self._in_order = in_order
        self._waiting: list[Deferred] = []

    def reserve(self) -> Deferred:
        """Return a place in the order of this level, for a call that is not known yet."""
        place = Deferred(self._context)
        if self._in_order:
            self._waiting.append(place)
        return place

    def complete(self, place: Deferred, call: Callable[[], None]) -> None:
        """Set the call of a place; it is made when the level runs, or now if order is free."""
        if self._in_order:
            place.call = call
        else:
            self.call_now(place, call)

    def call_now(self, place: Deferred, call: Callable[[], None]) -> None:
        """Make a call about the record of a place, which stays empty."""
        context = self._context
        context.topic, context.partition = place.topic, place.partition
        context.offset = place.offset
        with context.about(place.raw):
            call()

    def defer(self, call: Callable[[], None]) -> None:
        """Make a call in its turn."""
        self.complete(self.reserve(), call)

    def deferring(self, forward: Forward) -> Forward:
        """Return a function that hands records to a node of this level in their turn."""
        if not self._in_order:
            return forward

        def deferred(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            self.defer(partial(forward, key, value, timestamp, headers))

        return deferred

    def punctuate(self) -> None:
        """Fire the punctuations that are due by stream time, here and then on the next level."""
        context = self._context
        if context.stream_time >= self.punctuations.next_stream_time:
            context.topic = None
            self.punctuations.fire("stream_time", context.stream_time)
        if self.following is not None:
            self.following.defer(self.following.punctuate)

    def run(self) -> None:
        """Make the calls that wait. Stream time is meanwhile that of each call's record."""
        waiting, self._waiting = self._waiting, []
        context = self._context
        stream_time = context.stream_time
        try:
            for place in waiting:
                context.stream_time = place.stream_time
                if place.call is not None:
                    self.call_now(place, place.call)
        finally:
            context.stream_time = stream_time


class Levels:
    """All levels of a task.

    ``follows_time``: a processor behind level 0 may ask for punctuations, so that its level has to
    be told of every record, also of those that do not reach it.
    """

    def __init__(self, group: SubTopology, topology: Topology, context: TaskContext) -> None:
        self._of = node_levels(group.nodes)
        in_order = keeps_order(group, topology)
        count = max((self.of(n) + isinstance(n, AsyncCall) for n in group.nodes), default=0) + 1
        self.all = [Level(context, in_order=in_order) for _ in range(count)]
        self.follows_time = in_order and any(
            self.of(node) > 0 and _may_punctuate(node) for node in group.nodes
        )
        if self.follows_time:
            for level, following in zip(self.all, self.all[1:], strict=False):
                level.following = following

    def of(self, node: Node) -> int:
        """Return the number of a node's level."""
        return self._of[node.name]

    def connect(self, parent: Node, child: Node, forward: Forward) -> Forward:
        """Return what hands records of ``parent`` to ``child``, whose function is ``forward``."""
        first = self.of(parent) + isinstance(parent, AsyncCall)
        for number in range(self.of(child), first, -1):
            forward = self.all[number].deferring(forward)
        return forward

    @property
    def next_wall_clock_time(self) -> int:
        """The wall-clock time at which the next punctuation is due."""
        return min(level.punctuations.next_wall_clock_time for level in self.all)

    async def settle(self) -> None:
        """Finish what async nodes have taken in, level by level, with all that follows from it."""
        for level, following in zip(self.all, self.all[1:], strict=False):
            for stage in level.stages:
                await stage.settle()
            following.run()

    def due(self) -> dict[str, int | None]:
        """Return when each punctuation is due, as `Punctuations.due` does."""
        return {name: time for level in self.all for name, time in level.punctuations.due().items()}


def keeps_order(group: SubTopology, topology: Topology) -> bool:
    """Return whether anything behind the group's async nodes depends on the order of records.

    This is so with every node that keeps state or time, and with every topic that the program
    itself reads again.
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
    return isinstance(node, _ORDERLESS) and not _may_punctuate(node)


def _may_punctuate(node: Node) -> bool:
    if isinstance(node, AsyncCall):
        return node.operation == "process"
    return isinstance(node, Process) or (isinstance(node, Table) and node.supplier is not None)


def node_levels(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the level of each node, by name; parents stand before their children.

    A store that is used before and behind the same async node connects no levels: its users keep
    those that their parents give them.
    """
    shared: dict[str, set[str]] = {}
    for node in nodes:
        if not isinstance(node, AsyncCall):  # its calls use the store in any order
            for store in node.stores:
                shared.setdefault(store, set()).add(node.name)
    calls = sum(isinstance(node, AsyncCall) for node in nodes)
    together = [users for users in shared.values() if len(users) > 1]
    hops = _before_calls(nodes)
    while True:
        levels = _relaxed(nodes, together, calls)
        beyond = {name for name, level in levels.items() if level > calls}
        if not beyond:
            return levels
        raised = [users for users in together if users & beyond]
        direct = [users for users in raised if any(hops[name] & users for name in users)]
        together = [users for users in together if users not in (direct or raised)]


def _before_calls(nodes: Sequence[Node]) -> dict[str, set[str]]:
    """Return the nodes that reach each node through an async node."""
    above: dict[str, set[str]] = {}
    hops: dict[str, set[str]] = {}
    for node in nodes:
        above[node.name] = set(node.parents).union(*(above[name] for name in node.parents))
        hops[node.name] = set().union(*(hops[name] for name in node.parents))
        for parent in nodes:
            if parent.name in node.parents and isinstance(parent, AsyncCall):
                hops[node.name] |= above[parent.name]
    return hops


def _relaxed(nodes: Sequence[Node], together: Iterable[set[str]], calls: int) -> dict[str, int]:
    """Raise levels until all conditions hold, or until some are higher than there are calls."""
    kinds = {node.name: node for node in nodes}
    levels = dict.fromkeys(kinds, 0)
    before: dict[str, int] = {}
    while levels != before and max(levels.values(), default=0) <= calls:
        before = dict(levels)
        for node in nodes:
            for parent in node.parents:
                after = levels[parent] + isinstance(kinds[parent], AsyncCall)
                levels[node.name] = max(levels[node.name], after)
        for users in together:
            highest = max(levels[name] for name in users)
            levels |= dict.fromkeys(users, highest)
    return levels
