"""Offsets of a source as Spark writes them down: topics, and what stands between them."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["DEALT", "PADDING", "of_topics"]

DEALT = "#"
"""Where the embedded log's offsets say how their batch is dealt out; no topic is called so."""

PADDING = "thulawa-padding"
"""An empty topic of Kafka that is read beside others where their partitions are few."""

_Places = TypeVar("_Places")


def of_topics(offsets: Mapping[str, _Places]) -> dict[str, _Places]:
    """Give the offsets of the topics that somebody asked for."""
    return {name: places for name, places in offsets.items() if name not in (DEALT, PADDING)}
