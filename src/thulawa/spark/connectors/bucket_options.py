"""Source options that divide the record limit of a micro-batch between buckets and partitions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.quotas import evenly, grouped, in_turn, weighted

__all__ = ["Admission", "Assigned", "Place", "Split", "assigned", "chosen"]

Place: TypeAlias = tuple[str, str]
"""Topic and partition, which offsets in JSON write as text."""

Split: TypeAlias = Callable[[Mapping[Place, int], int], Mapping[Place, int]]
Assigned: TypeAlias = Mapping[str, tuple[str, ...]]
_ORDERS = ("weighted", "strict")


@dataclass(frozen=True, slots=True)
class Admission:
    """How the record limit is divided: evenly, or between buckets by weight or in order."""

    buckets: Buckets | None = None
    strict: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Admission":
        """Create one from the source options ``buckets`` and ``bucketOrder``."""
        known, order = options.get("buckets"), options.get("bucketOrder")
        if order is not None and order not in _ORDERS:
            raise ConfigurationError(f"bucketOrder is one of {', '.join(_ORDERS)}, not {order!r}")
        if known is None and order is not None:
            raise ConfigurationError('bucketOrder goes with .option("buckets", buckets.text)')
        return cls(None if known is None else Buckets.of(known), order == "strict")

    def split(self, counts: Mapping[str, int]) -> Split:
        """Return the split function for topics with these numbers of partitions."""
        buckets = self.buckets
        if buckets is None:
            return evenly
        groups = {
            (topic, str(place)): bucket
            for topic, count in counts.items()
            for place, bucket in buckets.members(count).items()
        }
        shares = dict(buckets.shares)
        between = (
            partial(in_turn, order=buckets.urgency)
            if self.strict
            else partial(weighted, weights=shares)
        )
        return partial(grouped, groups=groups, split=between)


def assigned(options: Mapping[str, str]) -> Assigned | None:
    """Return the partitions that the option ``assign`` names, as in Spark's Kafka source."""
    text = options.get("assign")
    if text is None:
        return None
    try:
        return {
            topic: tuple(str(int(place)) for place in places)
            for topic, places in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"assign={text!r} is no assignment; write '{{\"orders\": [0, 1]}}'"
        ) from error


def chosen(offsets: dict[str, dict[str, int]], to: Assigned | None) -> dict[str, dict[str, int]]:
    """Return the offsets of the assigned partitions; of all if none are assigned."""
    if to is None:
        return offsets
    for topic, places in to.items():
        if missing := [place for place in places if place not in offsets[topic]]:
            raise ConfigurationError(
                f"topic {topic} has no partition {missing[0]}: it has {len(offsets[topic])}"
            )
    return {
        topic: {place: offsets[topic][place] for place in places} for topic, places in to.items()
    }
