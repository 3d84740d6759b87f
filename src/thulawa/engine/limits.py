"""What bounds the calls of an engine: a fixed concurrency limit, a rate, and the size of a batch.

The adaptive concurrency limit is in `adaptive`.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from thulawa.engine.checks import require
from thulawa.engine.options import Batch, Rate

Verdict: TypeAlias = Literal["success", "failure", "overload"]

# Rounding may leave a token just short of 1, and the caller would wake up again and again.
_WHOLE = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReport:
    """The limit in force (``permits``), the limit the algorithm proposes, and the reason.

    ``baseline`` and ``latency`` are in seconds; ``changes`` counts moves of the proposed limit.
    """

    mode: Literal["off", "observe", "enforce"]
    permits: int
    proposed: float
    baseline: float | None = None
    latency: float | None = None
    reason: str
    changes: int = 0


class Limit:
    """The highest number of calls in flight, ``permits``. This one is fixed."""

    adapts = False

    def __init__(self, permits: int) -> None:
        require(permits >= 1, f"the limit must be at least 1, not {permits}")
        self.permits = permits

    def observe(self, latency: float, verdict: Verdict, in_flight: int, now: float) -> None:
        """Account for a finished call; ``in_flight`` counts the calls at its end, with itself."""

    def report(self) -> LimitReport:
        """Return the limit and the reason for it."""
        return LimitReport(
            mode="off", permits=self.permits, proposed=float(self.permits), reason="fixed"
        )


class TokenBucket:
    """Limits the rate of starts: knows whether a call may start now, and if not, when.

    Tokens are added at the rate, up to the burst; each start removes one. A server's Retry-After
    closes the bucket for that long. Over any interval the rate is exceeded by at most the burst.
    """

    __slots__ = ("_burst", "_closed_until", "_filled_at", "_per_second", "_tokens")

    def __init__(self, rate: Rate | None) -> None:
        self._per_second = inf if rate is None else rate.per_second * rate.share
        self._burst = 1.0 if rate is None else max(1.0, rate.burst * rate.share)
        self._tokens = self._burst
        self._filled_at = 0.0
        self._closed_until = -inf

    @property
    def limits(self) -> bool:
        """Whether it can delay a start: there is a rate, or it was closed."""
        return self._per_second != inf or self._closed_until > -inf

    def ready_at(self, now: float) -> float:
        """Return the time from which a call may start; at most ``now`` if it may start now."""
        if now > self._filled_at and self._per_second != inf:
            gained = (now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + gained)
            self._filled_at = now
        if self._tokens >= _WHOLE:
            return self._closed_until
        return max(self._closed_until, now + (1 - self._tokens) / self._per_second)

    def take(self) -> None:
        """Remove the token of one call; `ready_at` must have allowed it."""
        if self._per_second != inf:
            self._tokens -= 1

    def close_until(self, when: float) -> None:
        """Allow no start before ``when`` (Retry-After)."""
        self._closed_until = max(self._closed_until, when)


class BatchSize:
    """The current size of a batch, between 1 and ``Batch.size``.

    It grows by one after every full batch that met the latency target and shrinks by a tenth after
    one that missed it. Without a target the size is fixed.
    """

    __slots__ = ("_size", "_target", "_top", "now")

    def __init__(self, options: Batch) -> None:
        self._top = options.size
        self._target = options.target
        self._size = float(options.size if options.target is None else min(10, options.size))
        self.now = int(self._size)

    def observe(self, records: int, latency: float) -> None:
        """Adapt the size to the latency of a batch that succeeded."""
        if self._target is None:
            return
        if latency > self._target:
            self._size = max(1.0, min(self._size, records) * 0.9)
        elif records >= self.now:
            self._size = min(float(self._top), self._size + 1)
        self.now = int(self._size)
