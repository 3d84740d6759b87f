"""Describe topologies in exactly the text of Kafka's ``Topology.describe()``.

Kafka sorts the nodes of a sub-topology by the number of nodes below them, then by name; but it
sorts the arrows of a node by the sizes known so far while it iterates over a hash map. To return
the same text for every topology, this module repeats that iteration, Java's string hash included.
"""

from collections.abc import Iterable, Sequence

from thulawa.topology.nodes import GlobalTable, Node, Sink, Source
from thulawa.topology.subtopologies import SubTopology


def describe(groups: Sequence[SubTopology]) -> str:
    """Describe sub-topologies in the order of their numbers."""
    return "Topologies:\n " + "".join(f"  {_described(group)}" for group in groups)


def java_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which a Java HashSet holds them.

    >>> java_order(["b", "a", "Aa", "BB"])
    ['Aa', 'BB', 'a', 'b']
    """
    unique = list(dict.fromkeys(names))
    capacity = 16
    while len(unique) > capacity * 3 // 4:
        capacity *= 2
    return sorted(unique, key=lambda name: _spread(name) & (capacity - 1))


def _spread(name: str) -> int:
    value = 0
    units = name.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value ^ (value >> 16)


class _DescribedNode:
    """A node of the description, with its size and its neighbours."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.name = node.name
        self.size = 1
        self.before: list[_DescribedNode] = []
        self.after: list[_DescribedNode] = []

    def grow(self, by: int) -> None:
        self.size += by
        for line in self.before:
            line.grow(by)

    def order(self) -> tuple[int, str]:
        return -self.size, self.name


def _described(group: SubTopology) -> str:
    if group.is_global:
        return _global(group)
    lines = {node.name: _DescribedNode(node) for node in group.nodes}
    for name in java_order(lines):
        line = lines[name]
        for parent in dict.fromkeys(line.node.parents):
            _insert(line.before, lines[parent])
            _insert(lines[parent].after, line)
            lines[parent].grow(line.size)
    ordered = sorted(lines.values(), key=_DescribedNode.order)
    body = "".join(f"    {_text(line)}\n" for line in ordered)
    return f"Sub-topology: {group.id}\n{body}\n"


def _insert(lines: list[_DescribedNode], line: _DescribedNode) -> None:
    """Insert a line by its current size; it stays there when sizes change."""
    at = next((i for i, other in enumerate(lines) if line.order() < other.order()), len(lines))
    lines.insert(at, line)


def _text(line: _DescribedNode) -> str:
    node = line.node
    if isinstance(node, Source):
        topics = ", ".join(java_order(node.topics))
        return f"Source: {node.name} (topics: [{topics}])\n      --> {_names(line.after)}"
    if isinstance(node, Sink):
        return f"Sink: {node.name} ({topic_of(node)})\n      <-- {_names(line.before)}"
    listed = [store for store in node.stores if store not in node.unlisted_stores]
    stores = ", ".join(java_order(listed))
    return (
        f"Processor: {node.name} (stores: [{stores}])\n"
        f"      --> {_names(line.after)}\n      <-- {_names(line.before)}"
    )


def _global(group: SubTopology) -> str:
    table = group.nodes[0]
    assert isinstance(table, GlobalTable)
    return (
        f"Sub-topology: {group.id} for global store (will not generate tasks)\n"
        f"    Source: {table.source} (topics: [{table.topic}])\n      --> {table.name}\n"
        f"    Processor: {table.name} (stores: [{table.stores[0]}])\n"
        f"      --> none\n      <-- {table.source}\n"
    )


def topic_of(node: Sink) -> str:
    """Describe where a sink writes to."""
    if isinstance(node.topic, str):
        return f"topic: {node.topic}"
    return f"extractor class: {getattr(node.topic, '__qualname__', type(node.topic).__name__)}"


def _names(lines: list[_DescribedNode]) -> str:
    return ", ".join(line.name for line in lines) or "none"
