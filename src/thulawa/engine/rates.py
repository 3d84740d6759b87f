"""A token bucket as an admission rule: it says no, it never makes anyone wait.

Tokens trickle in at the rate up to the burst; a call that starts takes one. A server's
Retry-After closes the bucket for that long. Overshoot over any interval is at most the burst.
"""

from thulawa.engine.options import Rate

__all__ = ["TokenBucket"]

# A token that rounding left a hair short would make the caller wake up for ever.
_WHOLE = 1 - 1e-9


class TokenBucket:
    """Tells whether a call may start now, and if not, when."""

    __slots__ = ("_burst", "_closed_until", "_filled_at", "_per_second", "_tokens")

    def __init__(self, rate: Rate | None) -> None:
        self._per_second = float("inf") if rate is None else rate.per_second * rate.share
        self._burst = 1.0 if rate is None else max(1.0, rate.burst * rate.share)
        self._tokens = self._burst
        self._filled_at = 0.0
        self._closed_until = float("-inf")

    @property
    def gates(self) -> bool:
        """Whether it may ever say no: there is a rate, or it was closed."""
        return self._per_second != float("inf") or self._closed_until > float("-inf")

    def ready_at(self, now: float) -> float:
        """Give the time from which a call may start; not later than ``now`` if it may."""
        self._fill(now)
        if self._tokens >= _WHOLE:
            return self._closed_until
        return max(self._closed_until, now + (1 - self._tokens) / self._per_second)

    def take(self) -> None:
        """Pay for one call; `ready_at` must have allowed it."""
        if self._per_second != float("inf"):
            self._tokens -= 1

    def close_until(self, when: float) -> None:
        """Let nothing start before ``when`` (Retry-After)."""
        self._closed_until = max(self._closed_until, when)

    def _fill(self, now: float) -> None:
        if now <= self._filled_at:
            return
        if self._per_second != float("inf"):
            gained = (now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + gained)
        self._filled_at = now
