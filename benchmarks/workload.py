"""What the engine is given to do, and the most that could be made of it.

A workload is a list of keys, one per record, and the latency of a call. The ceiling follows
from the keys that were drawn, not from their distribution: a key of n records takes at least
n × latency, and all of them at least records × latency / in flight, so a run takes at least
the longer of the two. With k keys that take turns this is min(k, in flight) / latency.
"""

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["DISTRIBUTIONS", "Keys", "Workload", "least_seconds", "workload"]

ZIPF_KEYS = 10_000
_SEED = 20_26
_FEWEST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Keys:
    """How keys are spread over records: in turn over ``count`` of them, or by Zipf's law.

    Without ``count`` every record has a key of its own.
    """

    name: str
    count: int | None = None
    zipf: float | None = None

    def draw(self, records: int) -> Sequence[Hashable]:
        """Give the key of each record."""
        if self.zipf is not None:
            weights = list(accumulate(zipf_weights(self.zipf, ZIPF_KEYS)))
            draw = random.Random(_SEED)
            return draw.choices(range(ZIPF_KEYS), cum_weights=weights, k=records)
        if self.count is None:
            return range(records)
        return [number % self.count for number in range(records)]

    def width(self, in_flight: int) -> float:
        """Give how many calls can be under way at once, on average, for very many records."""
        if self.zipf is not None:
            weights = zipf_weights(self.zipf, ZIPF_KEYS)
            return min(in_flight, sum(weights) / weights[0])
        return in_flight if self.count is None else min(in_flight, self.count)


DISTRIBUTIONS = (
    Keys("1", count=1),
    Keys("100", count=100),
    Keys("1,000", count=1_000),
    Keys("distinct"),
    Keys("Zipf 1.0", zipf=1.0),
    Keys("Zipf 1.5", zipf=1.5),
)


def zipf_weights(exponent: float, keys: int) -> list[float]:
    """Give the relative frequency of each key, the most frequent first."""
    return [rank**-exponent for rank in range(1, keys + 1)]


def least_seconds(keys: Sequence[Hashable], latency: float, in_flight: int) -> float:
    """Give the shortest time in which calls of this latency can be made for these keys."""
    longest = max(Counter(keys).values())
    return latency * max(longest, len(keys) / in_flight)


@dataclass(frozen=True, slots=True)
class Workload:
    """Records by their keys, the latency of a call, how many calls may be in flight.

    ``lead_in`` is the number of records before the clock starts: one round of calls where
    rounds are equal, so that neither the start nor the first latency counts; none for Zipf,
    whose bound is on the whole run.
    """

    keys: Sequence[Hashable]
    latency: float
    in_flight: int
    lead_in: int

    @property
    def ceiling(self) -> float | None:
        """The most events a second that are possible; None when calls take no time."""
        if not self.latency:
            return None
        return len(self.keys) / least_seconds(self.keys, self.latency, self.in_flight)


def workload(
    keys: Keys, latency: float, in_flight: int, *, seconds: float, fastest: float
) -> Workload:
    """Make a workload that takes about ``seconds`` on an engine of ``fastest`` events/s."""
    width = keys.width(in_flight)
    if latency:
        rounds = max(_FEWEST_ROUNDS, round(min(seconds / latency, seconds * fastest / width)))
    else:
        rounds = max(1, round(seconds * fastest / width))
    records = max(1, round(rounds * width))
    lead_in = 0 if keys.zipf is not None or rounds == 1 else round(width)
    return Workload(keys.draw(records), latency, in_flight, lead_in)
