"""Partition groups: which partitions one task reads together.

By default partition *i* of every topic belongs to task *i*, which is what joins need. A grouper
of the user's own may group otherwise, as long as every partition is in exactly one group.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from thulawa.core.errors import ConfigurationError

__all__ = ["PartitionGrouper", "TopicPartition", "by_number", "partition_groups"]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


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


def _by_topic(group: set[TopicPartition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, tuple[int, ...]] = {}
    for topic, number in sorted(group):
        topics[topic] = (*topics.get(topic, ()), number)
    return topics
