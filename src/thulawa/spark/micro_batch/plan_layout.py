"""The state layout of a plan: what `check_compatibility` compares with a checkpoint's manifest."""

from collections.abc import Collection

from thulawa.runtime.planning import Plan, StagedSubTopology
from thulawa.topology.compatibility import ProgramLayout, SubTopologyLayout
from thulawa.topology.state_layout import source_topics, store_state

__all__ = ["plan_layout"]


def plan_layout(
    plan: Plan, *, changelogs: Collection[str] = (), has_timers: bool = False
) -> ProgramLayout:
    """Return the layout of a plan; ``changelogs`` are the stores that have one."""
    behind = {name: plan.parts[plan.readers[name]].group.stores for name in plan.repartitions}
    return ProgramLayout(
        [_subtopology(plan, part) for part in plan.parts.values()],
        {
            name: store_state(
                plan.topology,
                name,
                stage=part.stage,
                tasks=len(part.tasks),
                changelog=name in changelogs,
            )
            for part in plan.parts.values()
            for name in part.group.stores
        },
        stages=plan.stages,
        has_timers=has_timers,
        repartitions={name: one.partitions for name, one in plan.repartitions.items()},
        store_behind={name: stores[0] for name, stores in behind.items() if stores},
    )


def _subtopology(plan: Plan, part: StagedSubTopology) -> SubTopologyLayout:
    group = part.group
    tables = [table.topic for table in plan.global_tables(group)]
    return SubTopologyLayout(group.id, group.stores, source_topics(group), part.tasks, tables)
