"""What a host of batches cannot run: refused at the user's line, before anything starts."""

from thulawa.core.errors import TopologyError
from thulawa.topology.nodes import Node, Sink, Source
from thulawa.topology.topology import Topology

__all__ = ["check_runs"]


def check_runs(topology: Topology) -> None:
    """Reject a program with an option that would have no effect, or fail when a record comes."""
    for node in topology.nodes.values():
        reason = _reason(node)
        if reason is not None:
            raise TopologyError(f"{node.name!r} cannot run: {reason}", where=node.where or None)


def _reason(node: Node) -> str | None:
    match node:
        case Source(offset_reset="latest"):
            return (
                "an application reads on where its checkpoint says, and without one from the "
                "earliest record; leave offset_reset out"
            )
        case Sink(topic=topic, partitioner=partitioner) if callable(topic) and partitioner:
            return (
                "its partitioner has to know how many partitions a topic has, which a topic that "
                "a function names does not tell; name the topic, or leave the partitioner out"
            )
        case _:
            return None
