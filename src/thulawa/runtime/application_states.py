"""The states of an application, as Kafka Streams names them."""

import logging
import threading
from collections.abc import Callable
from enum import Enum

_log = logging.getLogger("thulawa.streams")


class State(Enum):
    """Where an application is between its making and its end."""

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
    """Holds the state; a step that is not allowed is not taken. Listeners hear of each step.

    What a listener raises is logged, and changes nothing.
    """

    def __init__(self) -> None:
        self._state = State.CREATED
        self._lock = threading.Lock()
        self.listeners: list[Callable[[State, State], None]] = []

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    def go(self, new: State) -> bool:
        """Take a step; tell whether it was allowed."""
        with self._lock:
            old = self._state
            if new not in _NEXT[old]:
                return False
            self._state = new
        for listener in self.listeners:
            try:
                listener(new, old)
            except Exception:  # noqa: BLE001 it is the listener's own matter
                _log.exception("a state listener failed at %r", new.value)
        return True
