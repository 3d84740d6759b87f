"""Models of latency: frozen distributions that draw from a ``Random`` argument.

``sample(random)`` returns one duration, ``mean`` the expected one (a `Server` needs it for Little's
law), and calling the model sleeps for a drawn duration on the running loop, virtual or real. A
model has no state and no randomness of its own: it can be shared and compared, and two runs with
the same seed draw the same durations.

Never returning is the duration infinity. It awaits a future that nobody completes, not a timer at
infinity, which uvloop rejects.
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
        """Sleep for one drawn duration."""
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
    """Return a latency that is the same for every call."""
    return _Uniform(seconds, seconds)


def uniform(low: float, high: float) -> Latency:
    """Return a uniform distribution between ``low`` and ``high``."""
    if high == math.inf:
        raise ValueError("uniform(low, high) needs a finite high; never() is the infinite wait")
    return _Uniform(low, high)


def lognormal(median: float, sigma: float) -> Latency:
    """Return a distribution around ``median`` with a long tail, like that of real services.

    The tail grows with ``sigma``: at 0.5 one call in a hundred takes 3.2 × the median, at 1
    10 × the median.

    >>> round(lognormal(0.1, 0.5).mean, 3)
    0.113
    """
    return _Lognormal(median, sigma)


def never() -> Latency:
    """Return an infinite latency: only a timeout or a cancellation ends the call."""
    return _Uniform(math.inf, math.inf)
