"""Partition groups: which partitions one task reads together.

By default partition *i* of every topic belongs to task *i*, which is what joins need. A grouper
of the user's own may group otherwise, as long as every partition is in exactly one group.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from thulawa.core.errors import ConfigurationError
from thulawa.core.types import TopicPartition

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
    """Give each task's partitions by topic; refuse a grouping that loses or doubles one."""
    groups = [set(group) for group in grouper(partitions)]
    given = Counter(place for group in groups for place in group)
    wanted = {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count)
    }
    if missing := sorted(wanted - set(given)):
        raise ConfigurationError(f"the grouper leaves out {missing[0]}: nobody would read it")
    if unknown := sorted(set(given) - wanted):
        raise ConfigurationError(f"the grouper names {unknown[0]}, which does not exist")
    if twice := sorted(place for place, times in given.items() if times > 1):
        raise ConfigurationError(f"the grouper has {twice[0]} in two groups: choose one")
    return [_by_topic(group) for group in groups if group]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which partitions belonged together when state was made: it stays where it is.

    ``groups`` are those of the task that has a store, by the store's name, or else by ``/`` and the
    name of a topic (`planning.remembered_by`); ``repartitions`` is how
    many partitions inner topics had; ``durable`` are the repartitions that were topics: they may
    hold records that are still to be read.
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
        """Give the groups of the tasks of these names: as they were, or ``fresh`` ones.

        New partitions join the group of their number, counted round. Where there are stores, keys
        that are sent there now have their state in other tasks: whoever keeps the assignment
        refuses that, unless it is allowed.
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
