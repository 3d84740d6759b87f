"""How many records a micro-batch reads: as many as take about the time it should take.

A micro-batch has a fixed cost and a cost per record: ``seconds = fixed + each * records``. Both are
estimated from the micro-batches so far, recent ones weighted more, and the next limit is the number
of records for which the sum is the target. Where the fixed cost is most of the target or exceeds
it, the limit is the number of records that cost as much again: a smaller one would hardly shorten
the micro-batch and would increase the lag.

A limit changes at most twofold up and fourfold down per step, since the first micro-batches say
little. A micro-batch that read everything there was is no evidence against a higher limit, so the
limit stays. Nothing here reads a clock or waits.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from thulawa.errors import ConfigurationError

Binding: TypeAlias = Literal["source", "time", "overhead", "least", "most"]

_DECAY = 0.7  # of a micro-batch's weight, per later micro-batch
_UP, _DOWN = 2.0, 0.25
_SURPRISE = 3.0  # a duration off the estimate by this factor discards the estimate
_MAX_FIXED = 0.95  # share of a micro-batch's time: records cost something
_MIN_SPREAD = 0.02  # relative variance of sizes below which they say nothing about their cost


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveBatchSize:
    """Bounds for the records of a micro-batch, and the seconds that it should take.

    >>> AdaptiveBatchSize(least=100, most=1_000_000, seconds=2).first
    10000
    """

    least: int = 1_000
    most: int = 1_000_000
    seconds: float = 1.0
    first: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.first <= self.most:
            raise ConfigurationError("of records in a batch: 1 <= least <= first <= most")
        if not self.seconds > 0:
            raise ConfigurationError("the seconds that a batch should take must be more than 0")


class BatchSizeEstimator:
    """The limit of the next micro-batch, and what determines it.

    ``binding`` is ``source`` when there were fewer records than the limit, ``time`` when a larger
    micro-batch would take too long, ``overhead`` when micro-batches are too long because of their
    fixed cost, ``least`` and ``most`` once a bound is reached.
    """

    def __init__(self, options: AdaptiveBatchSize) -> None:
        self._options = options
        self._limit = float(options.first)
        self.fixed = 0.0  # the estimated fixed cost of a micro-batch, in seconds
        self._weight = self._size = self._time = self._sizes = self._product = 0.0
        self._each = 0.0
        self.binding: Binding = "source"

    @property
    def limit(self) -> int:
        """The most records of the next micro-batch."""
        return round(self._limit)

    def batch(self, records: int, seconds: float, *, more: bool) -> int:
        """Record a micro-batch and whether it left records unread; return the next limit."""
        if records < 1 or seconds <= 0:
            return self.limit
        self._estimate(records, seconds)
        wanted, why = self._wanted()
        if not more and wanted >= self._limit:
            self.binding = "source"
            return self.limit
        stepped = min(max(wanted, self._limit * _DOWN), self._limit * _UP)
        options = self._options
        self._limit = min(max(stepped, float(options.least)), float(options.most))
        if self._limit >= options.most:
            why = "most"
        elif self._limit <= options.least:
            why = "least"
        self.binding = why
        return self.limit

    def _wanted(self) -> tuple[float, Binding]:
        left, each = self._options.seconds - self.fixed, self._each
        return (left / each, "time") if left >= self.fixed else (self.fixed / each, "overhead")

    def _estimate(self, records: int, seconds: float) -> None:
        """Estimate the seconds per record: the slope of a weighted least-squares line."""
        expected = self.fixed + self._each * records
        if not expected / _SURPRISE < seconds < expected * _SURPRISE:
            self._weight = 0.0  # the load has changed: earlier micro-batches are no guide
        self._add(records, seconds)
        variance = self._sizes - self._size**2
        if variance > _MIN_SPREAD * self._size**2:
            slope = (self._product - self._size * self._time) / variance
            if slope > 0:
                self.fixed = max(self._time - slope * self._size, 0.0)
            else:
                self._weight = 0.0
                self._add(records, seconds)
        self.fixed = min(self.fixed, self._time * _MAX_FIXED)
        self._each = (self._time - self.fixed) / self._size

    def _add(self, records: int, seconds: float) -> None:
        """Add a micro-batch to the weighted means of sizes, times and their products."""
        self._weight = self._weight * _DECAY + 1
        self._size += (records - self._size) / self._weight
        self._time += (seconds - self._time) / self._weight
        self._sizes += (records * records - self._sizes) / self._weight
        self._product += (records * seconds - self._product) / self._weight
