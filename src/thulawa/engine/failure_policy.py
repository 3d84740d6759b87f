"""Classify failures: retry, and when, or fail for good.

Errors fall into three classes. *Overload* (raised as `Overload`) is retried until the deadline and
never counts as a failure. *Retriable* (raised as `Retriable`, timeouts, and what `Retry.on`
covers) is retried until the attempts are used up. *Terminal* is not retried. An error's
``retry_after`` makes the backoff longer, never shorter.
"""

from collections.abc import Hashable
from copy import copy
from random import Random

from thulawa.engine.options import Options, Quarantine
from thulawa.engine.work_items import Ticket
from thulawa.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Overload,
    RecordError,
    Retriable,
    Terminal,
    WrongResult,
    message_of,
)


class FailurePolicy:
    """Decides whether a failed attempt is retried, and which error ends its record."""

    __slots__ = ("_deadline", "_name", "_random", "_retry")

    def __init__(self, options: Options, random: Random) -> None:
        self._retry = options.retry
        self._deadline = options.deadline
        self._name = options.name
        self._random = random

    def retry_at(self, ticket: Ticket, error: Exception, now: float) -> float | None:
        """Count the failure; return the time of the next attempt, or None if there is none."""
        if isinstance(error, Terminal | DeadlineExceeded | WrongResult):
            ticket.failures += 1
            return None
        if isinstance(error, Overload):
            ticket.overloads += 1
            backoff = self._retry.backoff(ticket.overloads, self._random.random())
        else:
            ticket.failures += 1
            if ticket.failures >= self._retry.attempts or not self._covered(error):
                return None
            backoff = self._retry.backoff(ticket.failures, self._random.random())
        if isinstance(error, Overload | Retriable) and error.retry_after is not None:
            backoff = max(backoff, error.retry_after)
        when = now + backoff
        return when if when < self.deadline(ticket) else None

    def deadline(self, ticket: Ticket) -> float:
        """Return the time by which the ticket must be final; infinite without a deadline."""
        if self._deadline is None or ticket.first_started < 0:
            return float("inf")
        return ticket.first_started + self._deadline

    def final(self, ticket: Ticket, error: Exception) -> Exception:
        """Return the error that ends a record, with engine, offset, key and attempts set."""
        if isinstance(error, Overload):
            late = DeadlineExceeded("still overloaded at the deadline")
            late.__cause__ = error
            error = late
        if isinstance(error, RecordError) and error.offset is None:
            self._locate(error, ticket)
        return error

    def for_follower(self, ticket: Ticket, error: Exception) -> Exception:
        """Return a copy of the leader's error for a follower, with the original as its cause.

        An error that cannot be copied is returned itself.
        """
        try:
            own = copy(error)
        except Exception:  # noqa: BLE001 the user's class may need unknown arguments
            return error
        own.__cause__ = error
        if isinstance(own, RecordError) and own.node == self._name:
            self._locate(own, ticket)
        return own

    def abort_error(self, ticket: Ticket, error: Exception) -> RecordError:
        """Return the error that aborts the run: it names engine, record and cause."""
        if isinstance(error, RecordError):
            return error
        aborting = RecordError(f"{type(error).__name__}: {message_of(error)}")
        aborting.__cause__ = error
        self._locate(aborting, ticket)
        return aborting

    def _locate(self, error: RecordError, ticket: Ticket) -> None:
        error.node = self._name
        error.offset = ticket.record.offset
        error.key = ticket.record.key
        error.attempts = ticket.attempt
        error.record = ticket.record

    def _covered(self, error: Exception) -> bool:
        if isinstance(error, AttemptTimedOut | Retriable):
            return True
        try:
            return self._retry.covers(error)
        except Exception as broken:  # noqa: BLE001 the user's predicate must not stop the engine
            error.add_note(f"Retry.on raised {broken!r} when asked about this error")
            return False


class FailingKeys:
    """Keys whose last records failed for good, for quarantine; a bounded number of them."""

    __slots__ = ("_keys", "_options")

    def __init__(self, options: Quarantine) -> None:
        self._options = options
        # failures in a row, and the end of the quarantine; the key that failed last comes last
        self._keys: dict[Hashable, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def quarantined(self, now: float) -> int:
        """Return the number of keys that are in quarantine."""
        return sum(
            count >= self._options.after and now < until for count, until in self._keys.values()
        )

    def blocked(self, key: Hashable, now: float) -> bool:
        """Return whether the key is in quarantine."""
        known = self._keys.get(key)
        return known is not None and known[0] >= self._options.after and now < known[1]

    def failed(self, key: Hashable, now: float) -> None:
        """Count a record of the key that failed for good."""
        count = self._keys.pop(key, (0, 0.0))[0] + 1
        self._keys[key] = (count, now + self._options.seconds)
        if len(self._keys) > self._options.keys:
            del self._keys[next(iter(self._keys))]

    def succeeded(self, key: Hashable) -> None:
        """Forget the key's failures."""
        if self._keys:
            self._keys.pop(key, None)
