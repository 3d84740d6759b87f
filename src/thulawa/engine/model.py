"""What the engine moves about: records, tickets, outcomes.

A *record* is what the host hands in. While it waits it is nothing but that object in its key's
queue. When it is taken up it gets a *ticket*, which lives until the result is final and
carries what the attempts so far have left behind. What comes out is an *outcome*.

Records and outcomes are made once per record on the hot path, so they are structs of msgspec:
made in C, they cost half of what a dataclass with slots does. A ticket is written to more often
than it is made, and a struct is slower at that.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from thulawa.engine.queues import KeyQueue

__all__ = ["NoLane", "Outcome", "Record", "Ticket"]


class Record(msgspec.Struct, eq=False):
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


class NoLane(int):
    """What a record has that could not be given a lane, with the reason: it is a `BadLane`."""

    why: str

    def __new__(cls, why: str) -> Self:
        """Be no lane's place."""
        none = super().__new__(cls, -1)
        none.why = why
        return none


class Outcome(msgspec.Struct, eq=False):
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

    # without slots, for then what most tickets never use can stand in the class: half the cost
    failures: int = 0
    overloads: int = 0
    first_started: float = -1.0
    started: float = 0.0
    solo: bool = False
    batch: "list[Ticket] | None" = None
    followers: "list[Ticket] | None" = None
    question: Hashable = None
    timer: list[Any] | None = None

    def __init__(self, record: Record, queue: "KeyQueue") -> None:
        self.record = record
        self.queue = queue
        self.attempt = 0

    def members(self) -> "list[Ticket]":
        """Give the tickets of the call that this ticket stands for."""
        return [self] if self.batch is None else self.batch

    def __repr__(self) -> str:
        return f"<Ticket offset={self.record.offset} attempt={self.attempt}>"
