"""Identify a store without names of nodes: by the topics and operators before and after it.

Generated names contain numbers. An operator inserted before another one takes over its number, and
with it the state under that name; the origin of a store does not change with the numbers.
"""

import re
from collections.abc import Callable, Iterable

from thulawa.topology.nodes import GlobalTable, Node, Sink, Source
from thulawa.topology.topology import Topology

_GENERATED = re.compile(r"-\d{10}(-store)?$")


def is_generated(name: str) -> bool:
    """Return whether a name looks like a generated one.

    >>> is_generated("KSTREAM-AGGREGATE-STATE-STORE-0000000002"), is_generated("per-page")
    (True, False)
    """
    return _GENERATED.search(name) is not None


def fed_by(topology: Topology, store: str) -> str:
    """Return the topics and operators upstream of a store, and the one that fills it.

    >>> from thulawa.streams import Materialized, StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> visits = builder.stream("visits").select_key(lambda _, page: page)
    >>> _ = visits.group_by_key().count(Materialized.as_("per-page"))
    >>> fed_by(builder.build(), "per-page")
    'visits, select_key, filter, aggregate'
    """
    nodes = topology.nodes
    owner = next(node for node in nodes.values() if store in node.stores)
    sinks = _by_topic(node for node in nodes.values() if isinstance(node, Sink) and node.internal)

    def before(node: Node) -> Iterable[str]:
        if isinstance(node, Source) and node.internal:
            return [name for topic in node.topics for name in sinks.get(topic, ())]
        return node.parents

    found = _reached(topology, owner, before)
    described = (_described(node) for node in nodes.values() if node.name in found)
    return ", ".join(filter(None, described))


def leads_to(topology: Topology, store: str) -> list[str]:
    """Return the topics that are written downstream of a store."""
    nodes = topology.nodes
    owner = next(node for node in nodes.values() if store in node.stores)
    sources = _by_topic(
        node for node in nodes.values() if isinstance(node, Source) and node.internal
    )

    def after(node: Node) -> Iterable[str]:
        if isinstance(node, Sink) and node.internal:
            return sources.get(str(node.topic), ())
        return [child.name for child in topology.children(node.name)]

    found = [nodes[name] for name in _reached(topology, owner, after)]
    return sorted(
        {
            node.topic if isinstance(node.topic, str) else "(by record)"
            for node in found
            if isinstance(node, Sink) and not node.internal
        }
    )


def _reached(
    topology: Topology, start: Node, steps: Callable[[Node], Iterable[str]]
) -> dict[str, None]:
    found = {start.name: None}
    waiting = [start]
    while waiting:
        for name in steps(waiting.pop()):
            if name not in found:
                found[name] = None
                waiting.append(topology.nodes[name])
    return found


def _by_topic(nodes: Iterable[Source | Sink]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        topics = node.topics if isinstance(node, Source) else (str(node.topic),)
        for topic in topics:
            found.setdefault(topic, []).append(node.name)
    return found


def _described(node: Node) -> str:
    if isinstance(node, Source | Sink) and node.internal:
        return ""
    if isinstance(node, Source):
        return " + ".join(sorted(node.topics))
    if isinstance(node, GlobalTable):
        return node.topic
    kind = type(node).__name__.lower()
    return str(getattr(node, "operation", kind))
