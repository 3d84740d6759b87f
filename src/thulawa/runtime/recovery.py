"""Where an application goes on when its checkpoint is lost: what its own topics tell.

A host that runs whole batches commits a batch task by task, each in a transaction of its own. So
when it ends for good, every task has written the last batch, or some have and the others stand
at the one before. A task's transaction holds its outputs, the changes of its stores, how far the
batch has read each partition (`Progress`), and the batch's number (its *marker*).

`recover` answers with what makes this whole again: which changes are to be taken back, and the
range of records that must be read once more, as one batch, in which the tasks that had written it
change their state but write nothing. That is what the host itself would have done.

A *generation* is one life of a checkpoint. It names the host's query, the last batch that is
complete before it begins, and, when it begins with a batch that was written in part, by whom and
under which stamps: should it be lost in that very batch, the next one still knows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from thulawa.core.errors import StateError
from thulawa.core.types import TopicPartition

__all__ = ["Generation", "Progress", "Recovery", "batch_stamp", "recover"]


@dataclass(frozen=True, slots=True)
class Generation:
    """One life of a checkpoint: who runs it, and where it began."""

    query: str
    batch: int = -1
    done: tuple[int, ...] = ()
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """What a task wrote about a partition: the batch of this stamp reads [start, end)."""

    source: TopicPartition
    stamp: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to go on: read from ``starts``, and first up to ``ends`` where there are any.

    In that first batch the tasks ``done`` write nothing. Changes with one of the ``stamps`` are
    taken back.
    """

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None = None
    done: tuple[int, ...] = ()
    stamps: frozenset[str] = frozenset()


def batch_stamp(query: str, batch: int) -> str:
    """Give a short name for a batch of a query, one that no other batch has.

    >>> batch_stamp("geo", 7) == batch_stamp("geo", 7) != batch_stamp("geo", 8)
    True
    """
    return blake2b(f"{query}/{batch}".encode(), digest_size=8).hexdigest()


def recover(
    generation: Generation, tasks: int, markers: Mapping[int, int], progress: Iterable[Progress]
) -> Recovery:
    """Say how to go on after the last batches of the tasks, by their markers."""
    found = list(progress)
    last = {task: markers.get(task, _first(generation, task)) for task in range(tasks)}
    newest, oldest = max(last.values()), min(last.values())
    ends: dict[TopicPartition, int] = {}
    for one in found:
        ends[one.source] = max(one.end, ends.get(one.source, 0))
    if newest == oldest:
        return Recovery(ends)
    if newest - oldest > 1:
        raise StateError(
            f"tasks of the application stand at the batches {oldest} and {newest}: markers have "
            "been lost (brokers forget them after offsets.retention.minutes), and with them what "
            "its changelogs belong to; begin anew with thulawa reset"
        )
    stamps = {batch_stamp(generation.query, newest)}
    if newest == generation.batch + 1:
        stamps.update(generation.stamps)
    starts = ends | {one.source: one.start for one in found if one.stamp in stamps}
    done = tuple(task for task, batch in last.items() if batch == newest)
    return Recovery(starts, ends, done, frozenset(stamps))


def _first(generation: Generation, task: int) -> int:
    """Give the batch a task stands at when the generation has not written anything of it yet."""
    return generation.batch + (task in generation.done)
