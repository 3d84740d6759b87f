"""Change a topology between runs.

A change creates another topology; the original stays as it is, so that the two can be compared
(`topology.compatibility`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from thulawa.errors import TopologyError
from thulawa.topology.nodes import AsyncCall, Node, Process, Sink, Stateless

_REMOVABLE = (Stateless, Process, AsyncCall, Sink)
Nodes = dict[str, Node]


@dataclass(frozen=True, slots=True)
class StateChange:
    """The effect of a change of topology on stores, by name."""

    kept: tuple[str, ...]
    lost: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def is_safe(self) -> bool:
        """Whether all state survives."""
        return not self.lost


def replaced(nodes: Mapping[str, Node], name: str, changes: Mapping[str, Any]) -> Nodes:
    """Return the nodes with some fields of one changed; names and edges stay the same."""
    node = _found(nodes, name)
    for fixed in ("name", "parents", "stores"):
        if fixed in changes:
            raise TopologyError(
                f"{fixed} of {name!r} cannot be replaced: remove the node and insert another"
            )
    known = node.__dataclass_fields__
    if unknown := sorted(set(changes) - set(known)):
        raise TopologyError(f"{name!r} is a {type(node).__name__}, which has no {unknown[0]!r}")
    return {**nodes, name: replace(node, **changes)}


def removed(nodes: Mapping[str, Node], name: str) -> Nodes:
    """Return the nodes without one; its children become those of its parents."""
    node = _found(nodes, name)
    if not isinstance(node, _REMOVABLE) or _is_referred_to(nodes, name):
        raise TopologyError(
            f"{name!r} is part of a {type(node).__name__}, which has several nodes; "
            "build the topology without it"
        )
    return {
        other.name: _reparented(other, name, node.parents)
        for other in nodes.values()
        if other.name != name
    }


def inserted_after(nodes: Mapping[str, Node], parent: str, node: Node) -> Nodes:
    """Return the nodes with one more; the children of ``parent`` become its children."""
    _found(nodes, parent)
    if node.name in nodes:
        raise TopologyError(f"the node {node.name!r} already exists")
    if not isinstance(node, Stateless | Process | AsyncCall):
        raise TopologyError(f"a {type(node).__name__} cannot be inserted; build the topology anew")
    result: Nodes = {}
    for other in nodes.values():
        result[other.name] = _reparented(other, parent, (node.name,))
        if other.name == parent:
            result[node.name] = replace(node, parents=(parent,))
    return result


def _found(nodes: Mapping[str, Node], name: str) -> Node:
    node = nodes.get(name)
    if node is None:
        raise TopologyError(f"there is no node {name!r}; there are {list(nodes)}")
    return node


def _reparented(node: Node, old: str, new: tuple[str, ...]) -> Node:
    if old not in node.parents:
        return node
    parents = [parent for name in node.parents for parent in (new if name == old else (name,))]
    return replace(node, parents=tuple(dict.fromkeys(parents)))


def _is_referred_to(nodes: Mapping[str, Node], name: str) -> bool:
    """Return whether another node refers to this one by name, other than as a parent."""
    for node in nodes.values():
        for field in ("table", "other", "pair", "default"):
            if getattr(node, field, None) == name:
                return True
        if name in getattr(node, "children", ()):
            return True
    return False
