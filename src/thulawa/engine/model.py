"""What the engine moves about: records, tickets, outcomes.

A *record* is what the host hands in. While it waits it is nothing but that object in its key's
queue. When it is taken up it gets a *ticket*, which lives until the result is final and
carries what the attempts so far have left behind. What comes out is an *outcome*.

These are made once per record on the hot path, so they are slotted and frozen for the type
checker only: the frozen ``__init__`` of a dataclass costs three times as much.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thulawa.engine.queues import KeyQueue

__all__ = ["Outcome", "Record", "Ticket"]


@dataclass(slots=True, eq=False)
class Record:
    """One event of a partition. Offsets rise; they may have gaps.

    ``timestamp`` decides which key goes first, in any unit; ``size`` counts against the bound
    on bytes; ``lane`` is an index into the lanes of the engine. ``taken`` is set by the engine.
    """

    offset: int
    key: Hashable
    value: Any = None
    timestamp: float = 0
    size: int = 0
    lane: int = 0
    taken: float = 0.0


@dataclass(slots=True, eq=False)
class Outcome:
    """What became of a record: its result, or the error that ended it."""

    record: Record
    result: Any = None
    error: Exception | None = None
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """Tell whether the function succeeded."""
        return self.error is None


class Ticket:
    """One record that has been taken up.

    ``attempt`` numbers its calls, so that the answer of an abandoned call is known as such.
    ``batch`` lists the tickets that share the call, on the first of them only; that first
    one stands for the call. ``followers`` wait for this ticket's answer to the same question.
    """

    __slots__ = (
        "attempt",
        "batch",
        "failures",
        "first_started",
        "followers",
        "overloads",
        "question",
        "queue",
        "record",
        "solo",
        "started",
        "timer",
    )

    def __init__(self, record: Record, queue: "KeyQueue") -> None:
        self.record = record
        self.queue = queue
        self.attempt = 0
        self.failures = 0
        self.overloads = 0
        self.first_started = -1.0
        self.started = 0.0
        self.solo = False
        self.batch: list[Ticket] | None = None
        self.followers: list[Ticket] | None = None
        self.question: Hashable = None
        self.timer: list[Any] | None = None

    def members(self) -> "list[Ticket]":
        """Give the tickets of the call that this ticket stands for."""
        return [self] if self.batch is None else self.batch

    def __repr__(self) -> str:
        return f"<Ticket offset={self.record.offset} attempt={self.attempt}>"
