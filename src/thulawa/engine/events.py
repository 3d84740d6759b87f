"""The events a scheduler handles and the instructions it returns.

Nothing else passes between the scheduler and the driver that does the I/O. What happens to every
record is reported in bulk, so that the cost of an event is shared.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from thulawa.engine.work_items import Outcome, Ticket, WorkItem


class Message(msgspec.Struct, eq=False):
    """An event or an instruction; nobody changes one."""


# --- events


class Arrived(Message):
    """Records from the source, in offset order; the reply to one `Pull`."""

    records: Sequence[WorkItem]


class Succeeded(Message):
    """Calls over one record each returned: ticket, attempt and result of each."""

    results: Sequence[tuple[Ticket, int, Any]]


class BatchReturned(Message):
    """A call over a batch returned: for each record its result or an exception."""

    ticket: Ticket
    attempt: int
    results: Sequence[Any]


class Failed(Message):
    """A call raised."""

    ticket: Ticket
    attempt: int
    error: Exception


class CallStopped(Message):
    """An abandoned call runs no more, or never began; the reply to `Abandon`.

    A result or an error reported after `Abandon` means the same.
    """

    ticket: Ticket
    attempt: int


class Delivered(Message):
    """The sink has accepted the oldest ``count`` outcomes that were emitted."""

    count: int


class Tick(Message):
    """The time of the last `WakeAt` has come."""


class Drain(Message):
    """No more records will arrive: finish those that did."""


class Cancel(Message):
    """Stop at once and return the unfinished records."""


Event: TypeAlias = (
    Arrived | Succeeded | BatchReturned | Failed | CallStopped | Delivered | Tick | Drain | Cancel
)


# --- instructions


class Pull(Message):
    """Read up to ``records`` records, and no more once ``bytes`` are reached; then `Arrived`."""

    records: int
    bytes: int


class Start(Message):
    """Call the function for each ticket, or for the batch it leads; report with its attempt."""

    tickets: list[Ticket]


class Abandon(Message):
    """Stop that call, whose result is no longer used; then `CallStopped`."""

    ticket: Ticket
    attempt: int


class Emit(Message):
    """Pass these to the sink, in this order; report `Delivered` when it has accepted them."""

    outcomes: list[Outcome]


class WakeAt(Message):
    """Send a `Tick` at this time, or soon after."""

    when: float


class ReturnUnfinished(Message):
    """These records arrived and are not finished; the reply to `Cancel`."""

    records: list[WorkItem]


class Drained(Message):
    """All records that arrived are finished; the reply to `Drain`."""


class Abort(Message):
    """The run has failed: no call starts any more."""

    error: Exception


Instruction: TypeAlias = Pull | Start | Abandon | Emit | WakeAt | ReturnUnfinished | Drained | Abort
