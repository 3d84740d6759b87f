"""Plan the recovery of an application whose checkpoint is lost, from its own topics.

Each task commits a batch in a transaction of its own. When the checkpoint is lost, either every
task has committed the last batch, or some have and the others stand at the batch before. A task's
transaction holds its outputs, the changes of its stores, the offsets that the batch reads
(`Progress`), and the number of the batch (its *marker*).

`recover` returns how to restore consistency: the changes to roll back, and the range of records to
read again as one batch, in which the tasks that had committed it change their state but write
nothing. Spark would have done the same with its checkpoint.

A *generation* is the lifetime of one checkpoint. It records the Spark query, the last batch that
was complete before it began, and, if it begins with a partly committed batch, the tasks that had
committed it and its stamps: if the new checkpoint is lost during that batch, they are still known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from thulawa.core.types import TopicPartition
from thulawa.errors import StateError


@dataclass(frozen=True, slots=True)
class Generation:
    """The lifetime of one checkpoint: its query, and where it began."""

    query: str
    batch: int = -1
    done: tuple[int, ...] = ()
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """A task's progress record for a partition: the batch with this stamp reads [start, end)."""

    source: TopicPartition
    stamp: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """How to continue: read from ``starts``, in the first batch up to ``ends`` if there are any.

    In that first batch the tasks ``done`` write nothing. Changes with one of the ``stamps`` are
    rolled back.
    """

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None = None
    done: tuple[int, ...] = ()
    stamps: frozenset[str] = frozenset()


def batch_stamp(query: str, batch: int) -> str:
    """Return a short unique name for a batch of a query.

    >>> batch_stamp("geo", 7) == batch_stamp("geo", 7) != batch_stamp("geo", 8)
    True
    """
    return blake2b(f"{query}/{batch}".encode(), digest_size=8).hexdigest()


def recover(
    generation: Generation, tasks: int, markers: Mapping[int, int], progress: Iterable[Progress]
) -> RecoveryPlan:
    """Return how to continue after the last batches of the tasks, by their markers."""
    found = list(progress)
    # without a marker of this generation, a task stands where the generation began
    begun = {task: generation.batch + (task in generation.done) for task in range(tasks)}
    last = {task: markers.get(task, batch) for task, batch in begun.items()}
    newest, oldest = max(last.values()), min(last.values())
    ends: dict[TopicPartition, int] = {}
    for one in found:
        ends[one.source] = max(one.end, ends.get(one.source, 0))
    if newest == oldest:
        return RecoveryPlan(ends)
    if newest - oldest > 1:
        raise StateError(
            f"tasks of the application stand at the batches {oldest} and {newest}: the markers of "
            "some are lost (brokers delete them after offsets.retention.minutes), so its "
            "changelogs cannot be used; start anew with thulawa reset"
        )
    stamps = {batch_stamp(generation.query, newest)}
    if newest == generation.batch + 1:
        stamps.update(generation.stamps)
    starts = ends | {one.source: one.start for one in found if one.stamp in stamps}
    done = tuple(task for task, batch in last.items() if batch == newest)
    return RecoveryPlan(starts, ends, done, frozenset(stamps))
