"""Decide whether a task's part of a micro-batch is still to be written.

A sink that writes exactly once commits a *marker* with the records of each task: the number of the
micro-batch, and the *layout* of the tasks that wrote it. A micro-batch that is run again after a
failure has the number of the marker, and is skipped. Every other number below the marker belongs to
a checkpoint that was put back from a backup: it counts up again with other records, so skipping
would lose them. And a micro-batch that is run again by another layout has its rows in other tasks:
what one task skips, no other task writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from thulawa.errors import OlderBatch, StateError

_NEW = "or begin with a new checkpoint, which reads and writes everything again"


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The content of a marker: the last micro-batch of a task, and the layout that wrote it.

    An empty layout is unknown, and compares with none.
    """

    number: int
    layout: str = ""


def is_written(
    batch: int, last: LastBatch | None, *, writer: str, task: int, layout: str = ""
) -> bool:
    """Return whether a sink holds a task's part of a micro-batch.

    Raise `OlderBatch` where the marker is of a later micro-batch, and `StateError` where it is of
    the same one in another layout.

    >>> is_written(7, None, writer="geo", task=0), is_written(7, LastBatch(6), writer="geo", task=0)
    (False, False)
    >>> is_written(7, LastBatch(7), writer="geo", task=0)
    True
    """
    if last is None or batch > last.number:
        return False
    if batch < last.number:
        raise _older(writer, task, last.number, f"it now sends batch {batch}")
    if layout and last.layout and layout != last.layout:
        raise StateError(
            f"task {task} of {writer} has written batch {batch} with the tasks {last.layout!r}, "
            f"and runs it again with {layout!r}: its rows may be in other tasks now.\n"
            f"Run the batch to its end with the plan that began it, then change the plan; {_NEW}"
        )
    return True


def check_checkpoint(
    begun: int,
    committed: int,
    markers: Mapping[int, LastBatch],
    *,
    writer: str,
    layout: str = "",
) -> None:
    """Raise if a query must not continue from its checkpoint; call it before the query starts.

    ``begun`` is the last entry of the checkpoint's offset log, ``committed`` that of its commit
    log, -1 where there is none; ``markers`` holds the last micro-batch of each task. Raise
    `OlderBatch` where a task has written a micro-batch that was never begun, and `StateError`
    where one that is going to be run again was written by another layout.
    """
    for task, last in markers.items():
        if last.number > begun:
            found = f"ends with batch {begun}" if begun >= 0 else "has begun no batch"
            raise _older(writer, task, last.number, f"the checkpoint {found}")
        if last.number > committed:
            is_written(last.number, last, writer=writer, task=task, layout=layout)


def _older(writer: str, task: int, written: int, found: str) -> OlderBatch:
    return OlderBatch(
        f"task {task} of {writer} has written batch {written}, and {found}: the checkpoint is "
        "older than what its sink has written.\n"
        f"Put the newest checkpoint back, {_NEW}"
    )
