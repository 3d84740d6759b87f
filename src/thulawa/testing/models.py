"""Models of latency and of faults: frozen values that draw from a ``Random`` argument.

A model has no state and no randomness of its own: it can be shared and compared, and two runs with
the same seed draw the same durations and faults. `flaky` applies models to a function. It counts
the attempts per record, not per key or function, because backoff and retries are per record too: a
count per anything else is exactly the bug that such a test looks for.
"""

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, overload

from thulawa.errors import Overload, Retriable, Terminal

T = TypeVar("T")


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
        """The expected duration, which a `Server` needs for Little's law."""

    @abstractmethod
    def sample(self, random: Random) -> float:
        """Draw one duration."""

    async def __call__(self, random: Random) -> None:
        """Sleep for one drawn duration on the running loop, virtual or real."""
        seconds = self.sample(random)
        if seconds == math.inf:  # not a timer at infinity, which uvloop rejects
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
        return (self.low + self.high) / 2

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


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail the first ``times`` attempts at a record, each with the given probability.

    ``error`` creates the exception from a message: an exception class, for example.
    """

    error: Callable[[str], Exception]
    times: float = math.inf
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"a probability is between 0 and 1, not {self.probability}")
        if self.times < 0:
            raise ValueError(f"times must not be negative, not {self.times}")

    def strike(self, attempt: int, random: Random) -> None:
        """Raise the error if the fault strikes at this attempt (the first is 1).

        >>> fails(1).strike(2, Random(1))
        """
        if attempt <= self.times and (self.probability == 1 or random.random() < self.probability):
            raise self.error(f"simulated, at attempt {attempt}")


@dataclass(frozen=True, slots=True)
class _Overloaded:
    """Creates `Overload`; a class so that equal faults compare equal."""

    retry_after: float | None

    def __call__(self, message: str) -> Exception:
        return Overload(message, retry_after=self.retry_after)


def fails(times: int, error: Callable[[str], Exception] = Retriable) -> Fault:
    """Fail the first ``times`` attempts at each record, then succeed."""
    return Fault(error, times=times)


def fails_always(error: Callable[[str], Exception] = Terminal) -> Fault:
    """Fail every attempt."""
    return Fault(error)


def fails_with_probability(p: float, error: Callable[[str], Exception] = Retriable) -> Fault:
    """Fail each attempt with probability ``p``, whatever came before."""
    return Fault(error, probability=p)


def overloaded(
    times: float = 1, *, retry_after: float | None = None, probability: float = 1.0
) -> Fault:
    """Fail the first ``times`` attempts with `Overload` and this ``retry_after``."""
    return Fault(_Overloaded(retry_after), times=times, probability=probability)


@overload
def flaky(
    fn: Callable[[Any], Awaitable[T]], *faults: Fault, random: Random, latency: Latency | None = ...
) -> Callable[[Any], Awaitable[T]]: ...


@overload
def flaky(
    fn: Callable[[Any], T], *faults: Fault, random: Random, latency: Latency | None = ...
) -> Callable[[Any], Awaitable[T]]: ...


def flaky(
    fn: Callable[[Any], Any], *faults: Fault, random: Random, latency: Latency | None = None
) -> Callable[[Any], Awaitable[Any]]:
    """Wrap a function of one record so that it takes time and fails by these models.

    The call waits for the latency, then each fault may strike, then ``fn`` runs. Attempts
    are counted by the record's ``offset``, or by the record itself if it has none.

    >>> import asyncio
    >>> attempt = flaky(str.upper, fails(1), random=Random(1))
    >>> asyncio.run(attempt("a"))
    Traceback (most recent call last):
    thulawa.errors.Retriable: simulated, at attempt 1
    >>> asyncio.run(attempt("a"))
    'A'
    """
    attempts: Counter[Hashable] = Counter()

    async def call(record: Any) -> Any:
        identity = getattr(record, "offset", record)
        attempts[identity] += 1
        attempt = attempts[identity]
        if latency is not None:
            await latency(random)
        for fault in faults:
            fault.strike(attempt, random)
        result = fn(record)
        return await result if inspect.isawaitable(result) else result

    return call
