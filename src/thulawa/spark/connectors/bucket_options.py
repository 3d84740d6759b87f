"""Source options that divide the record limit of a micro-batch between buckets and partitions."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import Buckets
from thulawa.priority.quotas import evenly, grouped, in_turn, weighted

Split: TypeAlias = Callable[[Mapping[TopicPartition, int], int], Mapping[TopicPartition, int]]
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

    def split(self, partitions: Iterable[TopicPartition]) -> Split:
        """Return the split function for topics with these partitions."""
        buckets = self.buckets
        if buckets is None:
            return evenly
        counts = Counter(at.topic for at in partitions)
        groups = {
            TopicPartition(topic, number): bucket
            for topic, count in counts.items()
            for number, bucket in buckets.members(count).items()
        }
        between = (
            partial(in_turn, order=buckets.urgency)
            if self.strict
            else partial(weighted, weights=dict(buckets.shares))
        )
        return partial(grouped, groups=groups, split=between)


def assigned(options: Mapping[str, str]) -> dict[str, list[int]] | None:
    """Return the partitions that the option ``assign`` names, as in Spark's Kafka source."""
    text = options.get("assign")
    if text is None:
        return None
    try:
        return {topic: list(map(int, numbers)) for topic, numbers in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"assign={text!r} is no assignment; write '{{\"orders\": [0, 1]}}'"
        ) from error
