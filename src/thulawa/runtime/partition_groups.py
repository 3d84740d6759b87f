"""Partition groups: which partitions one task reads together.

By default task *i* reads partition *i* of every topic, as joins need. A user-defined grouper may
group differently, as long as every partition is in exactly one group.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError

__all__ = ["Assignment", "PartitionGrouper", "TopicPartition", "by_number", "partition_groups"]

# partitions per topic -> groups of partitions, one task each
PartitionGrouper: TypeAlias = Callable[[Mapping[str, int]], Sequence[set[TopicPartition]]]


def by_number(partitions: Mapping[str, int]) -> list[set[TopicPartition]]:
    """Group the partitions of equal number.

    >>> [sorted(group) for group in by_number({"a": 2, "b": 1})][1]
    [TopicPartition(topic='a', partition=1)]
    """
    return [
        {TopicPartition(topic, number) for topic, count in partitions.items() if number < count}
        for number in range(max(partitions.values(), default=0))
    ]


def partition_groups(
    partitions: Mapping[str, int], grouper: PartitionGrouper = by_number
) -> list[dict[str, tuple[int, ...]]]:
    """Return each task's partitions by topic; reject a grouping that omits or repeats one."""
    groups = [set(group) for group in grouper(partitions)]
    given = Counter(partition for group in groups for partition in group)
    wanted = {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
    }
    if missing := sorted(wanted - set(given)):
        raise ConfigurationError(f"the grouper omits {missing[0]}: no task would read it")
    if unknown := sorted(set(given) - wanted):
        raise ConfigurationError(f"the grouper returned {unknown[0]}, which does not exist")
    if twice := sorted(partition for partition, times in given.items() if times > 1):
        raise ConfigurationError(f"the grouper put {twice[0]} into two groups: choose one")
    return [_by_topic(group) for group in groups if group]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partition groups of a checkpoint: existing state stays in its task.

    ``groups`` maps the name of a store, or ``/`` and a topic (`planning.checkpoint_names`), to the
    groups of its tasks. ``repartitions`` maps repartition topics to their partition counts.
    ``durable`` are the repartitions that were topics, which may hold unread records.
    """

    groups: Mapping[str, Sequence[Mapping[str, Sequence[int]]]] = field(default_factory=dict)
    repartitions: Mapping[str, int] = field(default_factory=dict)
    durable: frozenset[str] = frozenset()

    def applied(
        self,
        names: Iterable[str],
        partitions: Mapping[str, int],
        fresh: list[dict[str, tuple[int, ...]]],
    ) -> list[dict[str, tuple[int, ...]]]:
        """Return the groups recorded under one of these names, or ``fresh`` ones.

        A new partition joins the group of its number modulo the number of groups. With stores,
        keys that now go to a new partition have their state in other tasks: the host rejects
        this unless it is allowed.
        """
        name = next((name for name in names if name in self.groups), None)
        if name is None:
            return fresh
        before = self.groups[name]
        groups: list[set[TopicPartition]] = [
            {
                TopicPartition(topic, number)
                for topic, numbers in group.items()
                for number in numbers
                if number < partitions.get(topic, 0)
            }
            for group in before
        ]
        known = set().union(*groups)
        for topic, count in partitions.items():
            for number in range(count):
                if TopicPartition(topic, number) not in known:
                    groups[number % len(groups)].add(TopicPartition(topic, number))
        return [_by_topic(group) for group in groups]


def _by_topic(group: set[TopicPartition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, tuple[int, ...]] = {}
    for topic, number in sorted(group):
        topics[topic] = (*topics.get(topic, ()), number)
    return topics
