"""Models of faults: frozen rules, and `flaky`, which applies them to a function.

A `Fault` is a pure function from (attempt, randomness) to an exception or none. `flaky` counts the
attempts per record, not per key or function, because backoff and retries are per record too: a
count in the wrong place is exactly the bug that such a test looks for.
"""

import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, overload

from thulawa.errors import (
    Overload,
    Retriable,
    Terminal,
)
from thulawa.testing.latency import Latency

__all__ = [
    "Fault",
    "fails",
    "fails_always",
    "fails_with_probability",
    "flaky",
    "overloaded",
]

T = TypeVar("T")


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
    fn: Callable[[Any], Awaitable[T]],
    *faults: Fault,
    random: Random,
    latency: Latency | None = None,
) -> Callable[[Any], Awaitable[T]]: ...


@overload
def flaky(
    fn: Callable[[Any], T],
    *faults: Fault,
    random: Random,
    latency: Latency | None = None,
) -> Callable[[Any], Awaitable[T]]: ...


def flaky(
    fn: Callable[[Any], Any],
    *faults: Fault,
    random: Random,
    latency: Latency | None = None,
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
