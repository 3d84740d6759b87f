"""What a failure means: try again, and when, or give up.

Errors fall into three classes. *Overload* (raised as `Overload`) is tried again until the
deadline and never counted as a failure. *Retriable* (raised as `Retriable`, time-outs, and what
`Retry.on` covers) is tried again until the attempts are used up. *Terminal* is not tried again.
An error's ``retry_after`` makes the wait longer, never shorter.
Quarantine remembers, for a bounded number of keys, how many records in a row ended terminally.
"""

from collections.abc import Hashable
from copy import copy
from random import Random

from thulawa.core.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Overload,
    RecordError,
    Retriable,
    Terminal,
    WrongResult,
    message_of,
)
from thulawa.engine.limits import Verdict
from thulawa.engine.model import Ticket
from thulawa.engine.options import Options, Quarantine

__all__ = ["FailingKeys", "Judge"]


class Judge:
    """Decides on a failed attempt."""

    __slots__ = ("_deadline", "_name", "_random", "_retry")

    def __init__(self, options: Options, random: Random) -> None:
        self._retry = options.retry
        self._deadline = options.deadline
        self._name = options.name
        self._random = random

    @staticmethod
    def verdict(error: Exception) -> Verdict:
        """Tell the limit what kind of failure this was."""
        return "overload" if isinstance(error, Overload | TimeoutError) else "failure"

    def retry_at(self, ticket: Ticket, error: Exception, now: float) -> float | None:
        """Count the failure; give the time of the next attempt, or None to give up."""
        if isinstance(error, Terminal | DeadlineExceeded | WrongResult):
            ticket.failures += 1
            return None
        if isinstance(error, Overload):
            ticket.overloads += 1
            wait = self._retry.wait(ticket.overloads, self._random.random())
        else:
            ticket.failures += 1
            if ticket.failures >= self._retry.attempts or not self._covered(error):
                return None
            wait = self._retry.wait(ticket.failures, self._random.random())
        if isinstance(error, Overload | Retriable) and error.retry_after is not None:
            wait = max(wait, error.retry_after)
        when = now + wait
        return when if when < self.deadline(ticket) else None

    def deadline(self, ticket: Ticket) -> float:
        """Give the time by which the ticket must be final."""
        if self._deadline is None or ticket.first_started < 0:
            return float("inf")
        return ticket.first_started + self._deadline

    def final(self, ticket: Ticket, error: Exception) -> Exception:
        """Give the error that ends a record, with its place filled in."""
        if isinstance(error, Overload):
            late = DeadlineExceeded("still overloaded at the deadline")
            late.__cause__ = error
            error = late
        if isinstance(error, RecordError) and error.offset is None:
            self._locate(error, ticket)
        return error

    def for_follower(self, ticket: Ticket, error: Exception) -> Exception:
        """Give a record that shared a call an error of its own; the call's is its cause.

        An error that cannot be copied is shared.
        """
        try:
            own = copy(error)
        except Exception:  # noqa: BLE001 the user's class may ask for arguments nobody knows
            return error
        own.__cause__ = error
        if isinstance(own, RecordError) and own.node == self._name:
            self._locate(own, ticket)
        return own

    def story(self, ticket: Ticket, error: Exception) -> RecordError:
        """Give the error that ends the run: it names the engine, the record and the cause."""
        if isinstance(error, RecordError):
            return error
        story = RecordError(f"{type(error).__name__}: {message_of(error)}")
        story.__cause__ = error
        self._locate(story, ticket)
        return story

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
    """Keys whose last records ended terminally, the longest known first."""

    __slots__ = ("_keys", "_options")

    def __init__(self, options: Quarantine) -> None:
        self._options = options
        self._keys: dict[Hashable, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def quarantined(self, now: float) -> int:
        """Count the keys that are in quarantine now."""
        return sum(
            count >= self._options.after and now < until for count, until in self._keys.values()
        )

    def blocked(self, key: Hashable, now: float) -> bool:
        """Tell whether the key is in quarantine."""
        known = self._keys.get(key)
        return known is not None and known[0] >= self._options.after and now < known[1]

    def failed(self, key: Hashable, now: float) -> None:
        """Count a terminal failure of the key."""
        count = self._keys.pop(key, (0, 0.0))[0] + 1
        self._keys[key] = (count, now + self._options.seconds)
        if len(self._keys) > self._options.keys:
            del self._keys[next(iter(self._keys))]

    def succeeded(self, key: Hashable) -> None:
        """Forget the key's failures."""
        if self._keys:
            self._keys.pop(key, None)
