"""A token bucket that limits the rate of starts. It never blocks: it returns when to try again.

Tokens are added at the rate, up to the burst; each start takes one. A server's Retry-After closes
the bucket for that long. Over any interval the rate is exceeded by at most the burst.
"""

from thulawa.engine.options import Rate

# Rounding may leave a token just short of 1, and the caller would wake up again and again.
_WHOLE = 1 - 1e-9


class TokenBucket:
    """Knows whether a call may start now, and if not, when."""

    __slots__ = ("_burst", "_closed_until", "_filled_at", "_per_second", "_tokens")

    def __init__(self, rate: Rate | None) -> None:
        self._per_second = float("inf") if rate is None else rate.per_second * rate.share
        self._burst = 1.0 if rate is None else max(1.0, rate.burst * rate.share)
        self._tokens = self._burst
        self._filled_at = 0.0
        self._closed_until = float("-inf")

    @property
    def limits(self) -> bool:
        """Whether it can delay a start: there is a rate, or it was closed."""
        return self._per_second != float("inf") or self._closed_until > float("-inf")

    def ready_at(self, now: float) -> float:
        """Return the time from which a call may start; at most ``now`` if it may start now."""
        self._fill(now)
        if self._tokens >= _WHOLE:
            return self._closed_until
        return max(self._closed_until, now + (1 - self._tokens) / self._per_second)

    def take(self) -> None:
        """Remove the token of one call; `ready_at` must have allowed it."""
        if self._per_second != float("inf"):
            self._tokens -= 1

    def close_until(self, when: float) -> None:
        """Allow no start before ``when`` (Retry-After)."""
        self._closed_until = max(self._closed_until, when)

    def _fill(self, now: float) -> None:
        if now <= self._filled_at:
            return
        if self._per_second != float("inf"):
            gained = (now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + gained)
        self._filled_at = now
