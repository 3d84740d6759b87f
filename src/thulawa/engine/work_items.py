"""The objects of the engine: work items, tickets, outcomes.

A *work item* is one record as the host passes it to the engine. While it waits it is only that
object in its key's queue. When it is dispatched it gets a *ticket*, which lives until the result
is final and holds the state of its attempts. The engine emits an *outcome*.

Work items and outcomes are created once per record on the hot path, so they are msgspec structs:
created in C, at half the cost of a dataclass with slots. A ticket is written to more often than it
is created, and a struct is slower at that.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from thulawa.engine.queues import KeyQueue


class WorkItem(msgspec.Struct, eq=False):
    """One record of a partition, as passed to the engine. Offsets rise; they may have gaps.

    ``timestamp``, in any unit, decides which key is dispatched first. ``size`` counts against
    ``Bounds.bytes``. ``lane`` is an index into the engine's lanes. The engine sets ``arrived``.
    """

    offset: int
    key: Hashable
    value: Any = None
    timestamp: float = 0
    size: int = 0
    lane: int = 0
    arrived: float = 0.0


class NoLane(int):
    """The lane of a record whose lane could not be determined; it is rejected with `BadLane`."""

    why: str

    def __new__(cls, why: str) -> Self:
        """Create a lane that no engine has, with the reason for the error."""
        lane = super().__new__(cls, -1)
        lane.why = why
        return lane


class Outcome(msgspec.Struct, eq=False):
    """The result of a record, or the error that ended it."""

    record: WorkItem
    result: Any = None
    error: Exception | None = None
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """Whether the function succeeded."""
        return self.error is None


class Ticket:
    """One record that was dispatched, until its result is final.

    ``attempt`` numbers its calls, so that a late result of an abandoned call is recognised.
    The first ticket of a batch is its *lead*: it identifies the call and lists its tickets in
    ``batch``. ``followers`` wait for this ticket's result (single flight).
    """

    # no slots, so that rarely used attributes can be class defaults: half the cost to create
    failures: int = 0
    overloads: int = 0
    first_started: float = -1.0
    started: float = 0.0
    solo: bool = False
    batch: "list[Ticket] | None" = None
    followers: "list[Ticket] | None" = None
    request: Hashable = None
    timer: list[Any] | None = None

    def __init__(self, record: WorkItem, queue: "KeyQueue") -> None:
        self.record = record
        self.queue = queue
        self.attempt = 0

    def members(self) -> "list[Ticket]":
        """Return the tickets of the call that this ticket leads."""
        return [self] if self.batch is None else self.batch

    def __repr__(self) -> str:
        return f"<Ticket offset={self.record.offset} attempt={self.attempt}>"
