"""Offsets of our sources as Spark writes them to its offset log: positions and notes.

Notes hold everything else that a micro-batch depends on. A rerun reads them from the offset log, so
it has the same records in the same tasks, even if options or the broker have changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, TypeVar

from thulawa.core.types import TopicPartition

PartitionOffsets: TypeAlias = dict[TopicPartition, int]

NOTES = "#"
"""The key of the notes beside the topics; no topic can have this name."""

KAFKA = "kafka"

_Partitions = TypeVar("_Partitions")


def of_topics(offsets: Mapping[str, _Partitions]) -> dict[str, _Partitions]:
    """Return the offsets without the notes."""
    return {name: partitions for name, partitions in offsets.items() if name != NOTES}


def topic_partitions(group: Mapping[str, Iterable[Any]]) -> list[TopicPartition]:
    """Return topic-partitions from partition numbers by topic, which JSON may write as text."""
    return [TopicPartition(topic, int(n)) for topic, numbers in group.items() for n in numbers]


def by_partition(offsets: Mapping[str, Any]) -> PartitionOffsets:
    """Return offsets by topic-partition from offsets by topic, without the notes."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in of_topics(offsets).items()
        for number, offset in partitions.items()
    }


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as JSON has them: by topic, with partition numbers as text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        found.setdefault(topic, {})[str(number)] = offset
    return found


@dataclass(frozen=True, slots=True)
class Notes:
    """What an end offset holds besides positions.

    ``partitions``: the most Spark partitions, 0: one per topic-partition. ``broker``: "kafka", or
    empty for the embedded log. ``ids``: topic ids, if the broker has them. ``begins``: the first
    offsets of partitions that no batch has read before. ``more``: partitions that had more records
    than the batch reads.
    """

    partitions: int = 0
    broker: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    more: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, offsets: Mapping[str, Any]) -> "Notes":
        """Return the notes of an offset; empty ones if it has none."""
        return cls(**offsets.get(NOTES, {}))

    def beside(self, offsets: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Return offsets with these notes."""
        noted = {name: value for name, value in asdict(self).items() if value}
        return {**offsets, NOTES: {"partitions": self.partitions, **noted}}
