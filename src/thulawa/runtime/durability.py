"""Find the repartitions that must be topics because their records may differ on a re-run.

A shuffle sends records to tasks that commit one by one. If the batch fails between two of these
commits, it runs again and recomputes everything upstream of the shuffle. If a function then
returns something else, a record may reach a different task and be written twice or not at all. A
repartition topic is written once and then read as it is. Under exactly once a repartition is
therefore a shuffle only if every function upstream, back to the topics that its sub-topology reads,
is known to be deterministic (`topology.determinism`).
"""

from collections.abc import Iterable, Iterator

from thulawa.topology.determinism import node_nondeterminism
from thulawa.topology.nodes import Node, Sink
from thulawa.topology.subtopologies import SubTopology


def nondeterministic_repartitions(groups: Iterable[SubTopology]) -> dict[str, str]:
    """Return the repartition topics whose records may differ on a re-run, each with the reason."""
    reasons: dict[str, str] = {}
    for group in groups:
        for sink in group.sinks:
            if sink.internal:
                reason = next(_reasons_before(group, sink), None)
                if reason is not None:
                    reasons.setdefault(str(sink.topic), reason)
    return reasons


def _reasons_before(group: SubTopology, sink: Sink) -> Iterator[str]:
    for node in _upstream(group, sink):
        reason = node_nondeterminism(node)
        if reason is not None:
            where = f" (at {node.where})" if node.where else ""
            yield f"{node.name}{where}: {reason}"


def _upstream(group: SubTopology, sink: Sink) -> Iterator[Node]:
    """Yield the nodes whose results reach a sink, through other nodes or through a store."""
    nodes = {node.name: node for node in group.nodes}
    users: dict[str, list[str]] = {}
    for node in group.nodes:
        for store in node.stores:
            users.setdefault(store, []).append(node.name)
    waiting, seen = [sink.name], {sink.name}
    while waiting:
        node = nodes[waiting.pop()]
        yield node
        feeding = (*node.parents, *(user for store in node.stores for user in users[store]))
        for name in feeding:
            if name not in seen:
                seen.add(name)
                waiting.append(name)
