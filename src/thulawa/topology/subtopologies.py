"""Divide a topology into sub-topologies: nodes connected by edges or stores (union-find)."""

from collections.abc import Mapping
from dataclasses import dataclass

from thulawa.topology.nodes import GlobalTable, Node, Sink, Source


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Nodes that run as one task per partition group; a global table is loaded, not run."""

    id: int
    nodes: tuple[Node, ...]

    @property
    def is_global(self) -> bool:
        """Whether this is a global table."""
        return isinstance(self.nodes[0], GlobalTable)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The nodes that read topics."""
        return tuple(node for node in self.nodes if isinstance(node, Source))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The nodes that write topics."""
        return tuple(node for node in self.nodes if isinstance(node, Sink))

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of the stores its nodes use."""
        return tuple(dict.fromkeys(store for node in self.nodes for store in node.stores))


def subtopologies(nodes: Mapping[str, Node]) -> tuple[SubTopology, ...]:
    """Return the sub-topologies, numbered in the order of their first nodes."""
    roots = {name: name for name in nodes}

    def root(name: str) -> str:
        while roots[name] != name:
            roots[name] = roots[roots[name]]
            name = roots[name]
        return name

    first_user: dict[str, str] = {}
    for node in nodes.values():
        for parent in node.parents:
            roots[root(node.name)] = root(parent)
        for store in node.stores:
            roots[root(node.name)] = root(first_user.setdefault(store, node.name))
    groups: dict[str, list[Node]] = {}
    for node in nodes.values():
        groups.setdefault(root(node.name), []).append(node)
    return tuple(SubTopology(number, tuple(group)) for number, group in enumerate(groups.values()))
