"""Offsets of our sources as Spark writes them to its offset log: positions, and notes beside them.

The notes are everything else that a batch depends on. A batch that is run again has them from the
offset log, so it reads the same records in the same tasks, whatever the options and the broker say
by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

__all__ = ["KAFKA", "NOTES", "Notes", "Offsets", "of_topics"]

Offsets: TypeAlias = dict[str, dict[str, int]]
"""Topic, partition as JSON writes it, offset."""

NOTES = "#"
"""The key of the notes among the topics; no topic is called so."""

KAFKA = "kafka"

_Places = TypeVar("_Places")


def of_topics(offsets: Mapping[str, _Places]) -> dict[str, _Places]:
    """Return the offsets without the notes."""
    return {name: places for name, places in offsets.items() if name != NOTES}


@dataclass(frozen=True, slots=True)
class Notes:
    """What an end offset says besides positions.

    ``partitions``: the partitions of Spark at most, 0: one for each topic-partition. ``broker``:
    which kind has the topics, "kafka" or, empty, the embedded log. ``ids``: of
    the topics, where the broker has them. ``begins``: the first offsets of partitions that no
    batch has read before. ``more``: partitions of which the broker had more than the batch reads.
    """

    partitions: int = 0
    broker: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    more: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, offsets: Mapping[str, Any]) -> "Notes":
        """Return the notes of an offset; those of one that has none are empty."""
        return cls(**offsets.get(NOTES, {}))

    def beside(self, offsets: Offsets) -> dict[str, Any]:
        """Return offsets with these notes."""
        named = {"broker": self.broker, "ids": self.ids, "begins": self.begins, "more": self.more}
        noted = {name: value for name, value in named.items() if value}
        return {**offsets, NOTES: {"partitions": self.partitions, **noted}}

    def has_more(self, topic: str, partition: str) -> bool:
        """Return whether the broker had more records of a partition."""
        return partition in self.more.get(topic, ())
