"""How many records a batch takes: so many that it lasts about as long as it should.

A batch costs something by itself and something for each record: ``seconds = fixed + each * n``.
Both are estimated from the batches so far, the later ones counting more, and the next batch gets
the number of records for which the sum is the target. Where the fixed part is most of the target
or more, a batch takes as many records as cost as much again: to take fewer would not make it
shorter, only more would be waiting.

A step is at most twofold up and fourfold down, since the first batches of a program tell little.
A batch that took all there was says nothing against a higher limit, so the limit stays. Nothing
here reads a clock or waits: it is told what a batch took and answers with the next limit.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from thulawa.core.errors import ConfigurationError

__all__ = ["Binding", "FetchControl", "Fetching"]

Binding: TypeAlias = Literal["source", "time", "overhead", "least", "most"]

_FORGET = 0.7  # what a batch counts for, one batch later
_UP, _DOWN = 2.0, 0.25
_SURPRISE = 3.0  # a batch so much longer or shorter than expected ends what was known
_MOST_FIXED = 0.95  # of a batch's time: records cost something
_SPREAD = 0.02  # of sizes, relative and squared, below which they say nothing about their cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """Bounds for the records of a batch, and how many seconds it should take.

    >>> Fetching(least=100, most=1_000_000, seconds=2).first
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


class FetchControl:
    """The limit of the next batch, and what binds it.

    ``binding`` is ``source`` when there were fewer records than the limit, ``time`` when a larger
    batch would take too long, ``overhead`` when batches are longer than they should be because
    of their fixed part, ``least`` and ``most`` for the bounds, once they are reached.
    """

    def __init__(self, options: Fetching) -> None:
        self._options = options
        self._limit = float(options.first)
        self._weight = self._size = self._time = self._sizes = self._product = 0.0
        self._fixed = self._each = 0.0
        self.binding: Binding = "source"

    @property
    def limit(self) -> int:
        """How many records the next batch may take."""
        return round(self._limit)

    @property
    def fixed(self) -> float:
        """The seconds that a batch takes whatever is in it, as far as is known."""
        return self._fixed

    def batch(self, records: int, seconds: float, *, more: bool) -> int:
        """Take note of a batch, and whether it left any records behind; give the next limit."""
        if records < 1 or seconds <= 0:
            return self.limit
        each = self._estimated(records, seconds)
        wanted, why = self._wanted(each)
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

    def _wanted(self, each: float) -> tuple[float, Binding]:
        left = self._options.seconds - self._fixed
        return (left / each, "time") if left >= self._fixed else (self._fixed / each, "overhead")

    def _estimated(self, records: int, seconds: float) -> float:
        """Give the seconds for each record: a line through the batches, weighted by age."""
        told = self._fixed + self._each * records
        if not told / _SURPRISE < seconds < told * _SURPRISE:
            self._weight = 0.0  # something else than before: what was is no guide
        self._add(records, seconds)
        variance = self._sizes - self._size**2
        if variance > _SPREAD * self._size**2:
            slope = (self._product - self._size * self._time) / variance
            if slope > 0:
                self._fixed = max(self._time - slope * self._size, 0.0)
            else:
                self._weight = 0.0
                self._add(records, seconds)
        self._fixed = min(self._fixed, self._time * _MOST_FIXED)
        self._each = (self._time - self._fixed) / self._size
        return self._each

    def _add(self, records: int, seconds: float) -> None:
        """Take a batch into the means of sizes, times, and their products."""
        self._weight = self._weight * _FORGET + 1
        self._size += (records - self._size) / self._weight
        self._time += (seconds - self._time) / self._weight
        self._sizes += (records * records - self._sizes) / self._weight
        self._product += (records * seconds - self._product) / self._weight
