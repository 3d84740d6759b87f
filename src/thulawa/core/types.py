"""Types that every layer shares: topic-partitions, headers and offsets."""

from typing import NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and values of a record's headers, in their order; a name may occur twice."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets by topic and partition."""


class ProducerRecord(NamedTuple):
    """A record to be written. None as timestamp means now, as partition that of the key."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class ConsumerRecord(NamedTuple):
    """A record that was read, with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
