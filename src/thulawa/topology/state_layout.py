"""The state layout of a topology, and what becomes of state when another topology replaces it."""

from collections.abc import Sequence

from thulawa.topology.compatibility import (
    ApplicationManifest,
    ProgramLayout,
    StoreState,
    SubTopologyLayout,
    check_compatibility,
)
from thulawa.topology.key_serdes import written_as
from thulawa.topology.origins import fed_by, is_generated, leads_to
from thulawa.topology.state_change import StateChange
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology


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
