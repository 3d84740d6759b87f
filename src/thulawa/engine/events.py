"""The events a scheduler handles and the instructions it returns.

Nothing else passes between the scheduler and the driver that does the I/O. What happens to every
record is reported in bulk, so that the cost of an event is shared. All classes are frozen for
the type checker; at run time they only have slots, which is faster to create.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from thulawa.engine.work_items import Outcome, Ticket, WorkItem

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, eq_default=False)
def _message(cls: type[_T]) -> type[_T]:
    return dataclass(slots=True, eq=False)(cls)


# --- events


@_message
class Arrived:
    """Records from the source, in offset order; the reply to one `Pull`."""

    records: Sequence[WorkItem]


@_message
class Succeeded:
    """Calls over one record each returned: ticket, attempt and result of each."""

    results: Sequence[tuple[Ticket, int, Any]]


@_message
class BatchReturned:
    """A call over a batch returned: for each record its result or an exception."""

    ticket: Ticket
    attempt: int
    results: Sequence[Any]


@_message
class Failed:
    """A call raised."""

    ticket: Ticket
    attempt: int
    error: Exception


@_message
class CallStopped:
    """An abandoned call runs no more, or never began; the reply to `Abandon`.

    A result or an error reported after `Abandon` means the same.
    """

    ticket: Ticket
    attempt: int


@_message
class Delivered:
    """The sink has accepted the oldest ``count`` outcomes that were emitted."""

    count: int


@_message
class Tick:
    """The time of the last `WakeAt` has come."""


@_message
class Drain:
    """No more records will arrive: finish those that did."""


@_message
class Cancel:
    """Stop at once and return the unfinished records."""


Event: TypeAlias = (
    Arrived | Succeeded | BatchReturned | Failed | CallStopped | Delivered | Tick | Drain | Cancel
)


# --- instructions


@_message
class Pull:
    """Read up to ``records`` records, and no more once ``bytes`` are reached; then `Arrived`."""

    records: int
    bytes: int


@_message
class Start:
    """Call the function for each ticket, or for the batch it leads; report with its attempt."""

    tickets: list[Ticket]


@_message
class Abandon:
    """Stop that call, whose result is no longer used; then `CallStopped`."""

    ticket: Ticket
    attempt: int


@_message
class Emit:
    """Pass these to the sink, in this order; report `Delivered` when it has accepted them."""

    outcomes: list[Outcome]


@_message
class WakeAt:
    """Send a `Tick` at this time, or soon after."""

    when: float


@_message
class ReturnUnfinished:
    """These records arrived and are not finished; the reply to `Cancel`."""

    records: list[WorkItem]


@_message
class Drained:
    """All records that arrived are finished; the reply to `Drain`."""


@_message
class Abort:
    """The run has failed: no call starts any more."""

    error: Exception


Instruction: TypeAlias = Pull | Start | Abandon | Emit | WakeAt | ReturnUnfinished | Drained | Abort
