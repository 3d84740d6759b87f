"""What the scheduler is told, and what it answers.

Events go in, instructions come out; nothing else crosses the border between the logic and
whoever does the I/O. What happens to every record is told in the plural, so that its cost is
shared. All are frozen for the type checker; at run time only slotted (see `model`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from thulawa.engine.model import Outcome, Record, Ticket

__all__ = [
    "Abandon",
    "Abort",
    "Answered",
    "Arrived",
    "Cancel",
    "Delivered",
    "Drain",
    "Drained",
    "Emit",
    "Event",
    "Failed",
    "GiveBack",
    "Gone",
    "Instruction",
    "Pull",
    "Start",
    "Succeeded",
    "Tick",
    "WakeAt",
]

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, eq_default=False)
def _message(cls: type[_T]) -> type[_T]:
    return dataclass(slots=True, eq=False)(cls)


# --- events


@_message
class Arrived:
    """Records from the source, in offset order; answers one `Pull`."""

    records: Sequence[Record]


@_message
class Succeeded:
    """Calls over one record each returned: ticket, attempt and result of each."""

    answers: Sequence[tuple[Ticket, int, Any]]


@_message
class Answered:
    """A call over a batch returned: per record its result, or the exception that it met."""

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
class Gone:
    """A call that was abandoned runs no more, or never began; answers `Abandon`.

    Any other answer that comes after `Abandon` says the same.
    """

    ticket: Ticket
    attempt: int


@_message
class Delivered:
    """The oldest ``count`` outcomes that were emitted are now safe with whoever took them."""

    count: int


@_message
class Tick:
    """The time of the last `WakeAt` has come."""


@_message
class Drain:
    """No more records will come: finish what was taken in."""


@_message
class Cancel:
    """Stop at once and give back what is not finished."""


Event: TypeAlias = (
    Arrived | Succeeded | Answered | Failed | Gone | Delivered | Tick | Drain | Cancel
)


# --- instructions


@_message
class Pull:
    """Take up to ``records`` records, and no more once ``bytes`` are reached; then `Arrived`."""

    records: int
    bytes: int


@_message
class Start:
    """Call the function for each ticket, or for the batch it stands for; note its attempt."""

    tickets: list[Ticket]


@_message
class Abandon:
    """Stop that call, whose answer no longer counts; then `Gone`."""

    ticket: Ticket
    attempt: int


@_message
class Emit:
    """Hand these on, in this order; tell with `Delivered` when they are safe."""

    outcomes: list[Outcome]


@_message
class WakeAt:
    """Send a `Tick` at this time, or soon after."""

    when: float


@_message
class GiveBack:
    """These were taken in and are not finished; answers `Cancel`."""

    records: list[Record]


@_message
class Drained:
    """All that was taken in is finished and delivered; answers `Drain`."""


@_message
class Abort:
    """The run has failed; no call starts any more."""

    error: Exception


Instruction: TypeAlias = Pull | Start | Abandon | Emit | WakeAt | GiveBack | Drained | Abort
