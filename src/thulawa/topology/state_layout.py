"""The state layout of a topology, and what becomes of state when another topology replaces it.

A store with a generated name is identified by the topics and operators before and after it: names
contain numbers, and an operator inserted before another one takes over its number, and with it the
state under that name. The origin of a store does not change with the numbers.
"""

import re
from collections.abc import Iterator, Sequence

from thulawa.topology.compatibility import (
    ApplicationManifest,
    ProgramLayout,
    StateChange,
    StoreState,
    SubTopologyLayout,
    check_compatibility,
)
from thulawa.topology.key_serdes import written_as
from thulawa.topology.nodes import GlobalTable, Node, Sink, Source
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

_GENERATED = re.compile(r"-\d{10}(-store)?$")


def store_state(
    topology: Topology, name: str, *, stage: int, tasks: int, changelog: bool = False
) -> StoreState:
    """Return the state of a store before it is known where that is."""
    spec = topology.stores[name]
    fed, leads = "", list[str]()
    if is_generated(name):  # the name does not identify the store
        fed, leads = fed_by(topology, name), leads_to(topology, name)
    return StoreState(
        spec.kind,
        spec.size,
        stage,
        tasks,
        changelog=changelog,
        fed=fed,
        leads=leads,
        keys="" if spec.key_serde is None else written_as(spec.key_serde),
    )


def source_topics(group: SubTopology) -> Sequence[str]:
    """Return the topics that a sub-topology reads, sorted."""
    return sorted(topic for source in group.sources for topic in source.topics)


def compare_topologies(old: Topology, new: Topology) -> StateChange:
    """Return what happens to the stores of ``old`` when ``new`` runs in its place.

    Stages and tasks are not compared: they depend on the partitions of topics.
    """
    before, after = _layout(old), _layout(new)
    prefixes, _ = check_compatibility(ApplicationManifest(), before).complete(before, 0)
    manifest = ApplicationManifest(
        stores=before.stores_at(prefixes), storeless=before.storeless_at(prefixes)
    )
    losses = check_compatibility(manifest, after).losses
    lost = {loss.store for loss in losses if loss.store in before.stores}
    kept = tuple(name for name in before.stores if name not in lost)
    return StateChange(
        kept=kept,
        lost=tuple(name for name in before.stores if name in lost),
        added=tuple(name for name in after.stores if name not in kept),
    )


def _layout(topology: Topology) -> ProgramLayout:
    groups = topology.subtopologies()
    subtopologies = [
        SubTopologyLayout(group.id, group.stores, source_topics(group)) for group in groups
    ]
    stores = [name for group in groups for name in group.stores]
    return ProgramLayout(
        subtopologies,
        {name: store_state(topology, name, stage=0, tasks=1) for name in stores},
    )


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
    described = (_described(node) for node in _reached(topology, store, upstream=True))
    return ", ".join(filter(None, described))


def leads_to(topology: Topology, store: str) -> list[str]:
    """Return the topics that are written downstream of a store."""
    reached = _reached(topology, store, upstream=False)
    sinks = [node for node in reached if isinstance(node, Sink) and not node.internal]
    return sorted({sink.topic if isinstance(sink.topic, str) else "(by record)" for sink in sinks})


def _reached(topology: Topology, store: str, *, upstream: bool) -> list[Node]:
    """Return the node that owns a store and all nodes before or after it, in their order."""
    edges = list(_edges(topology))
    if upstream:
        edges = [(after, before) for before, after in edges]
    nodes = topology.nodes.values()
    waiting = [next(node.name for node in nodes if store in node.stores)]
    found = set(waiting)
    while waiting:
        name = waiting.pop()
        following = {end for start, end in edges if start == name} - found
        found |= following
        waiting += following
    return [node for node in nodes if node.name in found]


def _edges(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield the edges between nodes, and from the sinks of repartitions to their sources."""
    nodes = topology.nodes.values()
    for node in nodes:
        yield from ((parent, node.name) for parent in node.parents)
        if isinstance(node, Sink) and node.internal:
            sources = (other for other in nodes if isinstance(other, Source) and other.internal)
            yield from (
                (node.name, source.name) for source in sources if node.topic in source.topics
            )


def _described(node: Node) -> str:
    if isinstance(node, Source | Sink) and node.internal:
        return ""
    if isinstance(node, Source):
        return " + ".join(sorted(node.topics))
    if isinstance(node, GlobalTable):
        return node.topic
    kind = type(node).__name__.lower()
    return str(getattr(node, "operation", kind))
