"""How long a call takes: small frozen models, each drawing from a ``Random`` handed in.

A model is three things: ``sample(random)`` gives one duration, ``mean`` what they average
to (a `Server` needs it for Little's law), and calling the model waits that long on whatever
loop is running, virtual or real. A model holds no state and no randomness of its own, so one
may be shared, compared and printed, and two runs with the same seed see the same durations.

Never returning is not a special case: it is the duration infinity. It waits on a future
that nobody completes and not on a timer at infinity, which uvloop refuses.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

__all__ = ["Latency", "constant", "lognormal", "never", "uniform"]


class Latency(ABC):
    """A distribution of durations, in seconds.

    >>> constant(0.25).sample(Random(1))
    0.25
    >>> never().mean
    inf
    """

    __slots__ = ()

    @property
    @abstractmethod
    def mean(self) -> float:
        """The expected duration."""

    @abstractmethod
    def sample(self, random: Random) -> float:
        """Draw one duration."""

    async def __call__(self, random: Random) -> None:
        """Wait for one drawn duration."""
        seconds = self.sample(random)
        if seconds == math.inf:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class _Uniform(Latency):
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"a latency needs 0 <= low <= high, not {self.low} and {self.high}")

    @property
    def mean(self) -> float:
        return self.low if self.low == self.high else (self.low + self.high) / 2

    def sample(self, random: Random) -> float:
        return self.low if self.low == self.high else random.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Lognormal(Latency):
    median: float
    sigma: float

    def __post_init__(self) -> None:
        if self.median <= 0 or self.sigma < 0:
            raise ValueError(f"need median > 0 and sigma >= 0, not {self.median} and {self.sigma}")

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def sample(self, random: Random) -> float:
        return random.lognormvariate(math.log(self.median), self.sigma)


def constant(seconds: float) -> Latency:
    """Take the same time on every call."""
    return _Uniform(seconds, seconds)


def uniform(low: float, high: float) -> Latency:
    """Take any time between ``low`` and ``high``, each as likely."""
    if high == math.inf:
        raise ValueError("uniform(low, high) needs a finite high; never() is the infinite wait")
    return _Uniform(low, high)


def lognormal(median: float, sigma: float) -> Latency:
    """Take ``median`` seconds as a rule and now and then far longer, as services do.

    The tail grows with ``sigma``: at 0.5 one call in a hundred takes 3.2 × the median, at 1
    it takes 10 ×.

    >>> round(lognormal(0.1, 0.5).mean, 3)
    0.113
    """
    return _Lognormal(median, sigma)


def never() -> Latency:
    """Never return: only a time-out or a cancellation ends the call."""
    return _Uniform(math.inf, math.inf)
