"""Types that every layer shares: topic-partitions, headers and offsets."""

from typing import NamedTuple, TypeAlias

__all__ = ["Headers", "Offsets", "TopicPartition"]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and values of a record's headers, in their order; a name may occur twice."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets by topic and partition."""
