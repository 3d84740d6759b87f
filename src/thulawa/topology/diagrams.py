"""Render topologies as diagrams (Mermaid, Graphviz) and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence

from thulawa.state.specs import StoreSpec
from thulawa.topology.nodes import GlobalTable, Node, Sink, Source
from thulawa.topology.subtopologies import SubTopology


def to_mermaid(groups: Sequence[SubTopology]) -> str:
    """Draw a flowchart: topics as stadiums, stores as cylinders, sub-topologies as boxes."""
    ids = _ShortIds()
    lines = ["flowchart TD"]
    for group in groups:
        lines.append(f'  subgraph {ids.of("group", str(group.id))}["Sub-topology {group.id}"]')
        lines.extend(f'    {ids.of("node", n.name)}["{n.name}"]' for n in group.nodes)
        lines.append("  end")
    for group in groups:
        for kind, start, end in _edges(group):
            first, last = ids.of(*start), ids.of(*end)
            shape = {"topic": '(["{}"])', "store": '[("{}")]', "node": ""}
            left = first + shape[start[0]].format(start[1])
            right = last + shape[end[0]].format(end[1])
            lines.append(f"  {left} {'---' if kind == 'store' else '-->'} {right}")
    return "\n".join(lines) + "\n"


def to_dot(groups: Sequence[SubTopology]) -> str:
    """Draw a directed graph with one cluster per sub-topology."""
    lines = ["digraph topology {", "  node [shape=box];"]
    for group in groups:
        lines.append(f'  subgraph cluster_{group.id} {{ label="Sub-topology {group.id}";')
        lines.extend(f'    "{node.name}";' for node in group.nodes)
        lines.append("  }")
    for group in groups:
        for kind, (start_kind, start), (end_kind, end) in _edges(group):
            left = start if start_kind == "node" else f"{start_kind}: {start}"
            right = end if end_kind == "node" else f"{end_kind}: {end}"
            lines.append(f'  "{left}" -> "{right}"{" [dir=none]" if kind == "store" else ""};')
    return "\n".join([*lines, "}"]) + "\n"


def to_json(groups: Sequence[SubTopology], stores: Mapping[str, StoreSpec]) -> str:
    """Return sub-topologies with their nodes, and stores, as JSON."""
    content = {
        "sub_topologies": [
            {
                "id": group.id,
                "global": group.is_global,
                "nodes": [_node(node) for node in group.nodes],
            }
            for group in groups
        ],
        "stores": [{"name": store.name, "kind": store.kind} for store in stores.values()],
    }
    return json.dumps(content, indent=2)


def _node(node: Node) -> dict[str, object]:
    described: dict[str, object] = {
        "name": node.name,
        "kind": type(node).__name__,
        "parents": list(node.parents),
        "stores": list(node.stores),
    }
    if isinstance(node, Source):
        described["topics"] = list(node.topics)
    if isinstance(node, Sink | GlobalTable):
        described["topic"] = node.topic if isinstance(node.topic, str) else None
    return described


_End = tuple[str, str]


def _edges(group: SubTopology) -> Iterator[tuple[str, _End, _End]]:
    for node in group.nodes:
        here = ("node", node.name)
        if isinstance(node, Source):
            for topic in node.topics:
                yield "flow", ("topic", topic), here
        if isinstance(node, GlobalTable):
            yield "flow", ("topic", node.topic), here
        for parent in node.parents:
            yield "flow", ("node", parent), here
        for store in node.stores:
            yield "store", here, ("store", store)
        if isinstance(node, Sink) and isinstance(node.topic, str):
            yield "flow", here, ("topic", node.topic)


class _ShortIds:
    """Short identifiers for nodes whose names are not valid in Mermaid."""

    def __init__(self) -> None:
        self._ids: dict[_End, str] = {}

    def of(self, kind: str, name: str) -> str:
        return self._ids.setdefault((kind, name), f"{kind[0]}{len(self._ids)}")
