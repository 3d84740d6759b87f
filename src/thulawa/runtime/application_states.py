"""The states of an application, as Kafka Streams names them, and its restarts after errors."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from thulawa.core.durations import Duration, milliseconds
from thulawa.errors import ConfigurationError

_log = logging.getLogger("thulawa.streams")


class State(Enum):
    """The state of an application."""

    CREATED = "created"
    REBALANCING = "rebalancing"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending shutdown"
    NOT_RUNNING = "not running"
    PENDING_ERROR = "pending error"
    ERROR = "error"


_NEXT = {
    State.CREATED: {State.REBALANCING, State.PENDING_SHUTDOWN},
    State.REBALANCING: {State.RUNNING, State.PENDING_SHUTDOWN, State.PENDING_ERROR},
    State.RUNNING: {State.REBALANCING, State.PENDING_SHUTDOWN, State.PENDING_ERROR},
    State.PENDING_SHUTDOWN: {State.NOT_RUNNING},
    State.NOT_RUNNING: set(),
    State.PENDING_ERROR: {State.ERROR},
    State.ERROR: {State.PENDING_SHUTDOWN},
}


class StateMachine:
    """Hold the state, ignore transitions that are not allowed, and call listeners for the others.

    An error of a listener is logged, and changes nothing.
    """

    def __init__(self) -> None:
        self.state = State.CREATED
        self._lock = threading.Lock()
        self.listeners: list[Callable[[State, State], None]] = []

    def go(self, new: State) -> bool:
        """Change to a state; return whether it was allowed."""
        with self._lock:
            old = self.state
            if new not in _NEXT[old]:
                return False
            self.state = new
        for listener in self.listeners:
            try:
                listener(new, old)
            except Exception:  # noqa: BLE001 it is the listener's own matter
                _log.exception("a state listener failed at %r", new.value)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart after an error, with doubled backoff, at most ``attempts`` times in a row.

    A run that lasts longer than ``longest`` counts as a success: the next error starts over.
    """

    first: Duration = "1 s"
    longest: Duration = "1 minute"
    attempts: int = 10

    def __post_init__(self) -> None:
        milliseconds(self.first, name="first")
        milliseconds(self.longest, name="longest")
        if type(self.attempts) is not int or self.attempts < 0:
            raise ConfigurationError(
                f"attempts must be a whole number from 0, not {self.attempts!r}"
            )


def policy_of(answer: Any) -> Any:
    """Return the policy after an error; raise `ConfigurationError` if ``answer`` names none."""
    if answer == "restart":
        return Restart()
    if answer == "stop" or isinstance(answer, Restart) or callable(answer):
        return answer
    raise ConfigurationError(
        f'on_error is {answer!r}: use "stop", "restart", a Restart or a function that answers '
        'with "stop" or "restart"'
    )
