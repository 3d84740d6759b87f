"""Offsets of our sources as Spark writes them to its offset log: positions and notes.

Notes hold everything else that a micro-batch depends on. A rerun reads them from the offset log, so
it has the same records in the same tasks, even if options or the broker have changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

__all__ = ["KAFKA", "NOTES", "Notes", "Offsets", "of_topics"]

Offsets: TypeAlias = dict[str, dict[str, int]]
"""Topic, partition as JSON writes it, offset."""

NOTES = "#"
"""The key of the notes beside the topics; no topic can have this name."""

KAFKA = "kafka"

_Places = TypeVar("_Places")


def of_topics(offsets: Mapping[str, _Places]) -> dict[str, _Places]:
    """Return the offsets without the notes."""
    return {name: places for name, places in offsets.items() if name != NOTES}


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

    def beside(self, offsets: Offsets) -> dict[str, Any]:
        """Return offsets with these notes."""
        named = {"broker": self.broker, "ids": self.ids, "begins": self.begins, "more": self.more}
        noted = {name: value for name, value in named.items() if value}
        return {**offsets, NOTES: {"partitions": self.partitions, **noted}}

    def has_more(self, topic: str, partition: str) -> bool:
        """Return whether a partition had more records."""
        return partition in self.more.get(topic, ())
