"""Repartition topics of an application, across program changes and restarts.

Only this application reads such a topic, and each record once. So no record may be left unread when
a changed program no longer reads the topic, and no record of an earlier run may be read again.
"""

import logging
from collections.abc import Collection, Mapping

from thulawa.core.types import Offsets
from thulawa.errors import StateError
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program

__all__ = ["prepare_internal_topics"]

_log = logging.getLogger("thulawa.streams")


def prepare_internal_topics(
    program: Program, topics: StreamsBroker, checkpoint: Checkpoint, *, allow_state_loss: bool
) -> Offsets:
    """Check a changed program against the internal topics of the previous one.

    Raise `StateError` if records would be lost. Return the start offsets of internal topics for a
    query without a checkpoint: after what an earlier run has left there.
    """
    former = checkpoint.internal_topics()
    here = topics.partitions(program.internal_topics)
    _check_partitions(program, here)
    if former is None:
        return topics.end_offsets(tuple(here))
    losses = [*_unread(former - {*program.internal_topics}, topics, checkpoint)]
    entering = {*program.internal_topics} - former
    losses += _cut_off(program, entering, checkpoint)
    for loss in losses:
        if not allow_state_loss:
            raise StateError(f"{loss}; or discard these records with allow_state_loss=True")
        _log.warning("%s loses records: %s", program.application_id, loss)
    topics.delete_records(topics.end_offsets(tuple(entering & here.keys())))
    return {}


def _check_partitions(program: Program, here: Mapping[str, int]) -> None:
    for repartition in program.plan.repartitions.values():
        topic = f"{program.application_id}-{repartition.topic}"
        count = here.get(topic, repartition.partitions)
        if count != repartition.partitions:
            raise StateError(
                f"the repartition topic {topic!r} has {count} partitions, and the program needs "
                f"{repartition.partitions}: an earlier run of the application created it; "
                "remove it with thulawa reset"
            )


def _unread(gone: Collection[str], topics: StreamsBroker, checkpoint: Checkpoint) -> list[str]:
    """Return a message for each topic with records that the changed program would never read."""
    ends = topics.end_offsets(tuple(topics.partitions(tuple(gone))))
    done, starts = checkpoint.committed_offsets(), topics.start_offsets(tuple(ends))
    losses = []
    for topic, partitions in sorted(ends.items()):
        read = {n: max(done.get(topic, {}).get(n, 0), starts[topic][n]) for n in partitions}
        waiting = sum(max(0, end - read[n]) for n, end in partitions.items())
        if waiting:
            losses.append(
                f"the repartition topic {topic!r} holds {waiting} records that the program no "
                "longer reads: run the program as it was until it has read them, and name "
                "repartitions with Grouped or Repartitioned so that edits do not rename them"
            )
    return losses


def _cut_off(program: Program, entering: Collection[str], checkpoint: Checkpoint) -> list[str]:
    """Return a message if a shuffle became a topic while a micro-batch is not committed."""
    was_shuffle = [
        name
        for name in checkpoint.assignment().repartitions
        if f"{program.application_id}-{name}" in entering
    ]
    if not was_shuffle or not checkpoint.has_open_batch():
        return []
    why = (
        f"the repartition {was_shuffle[0]!r} was a shuffle and is now a topic, and the last batch "
        "is not committed: run the program as it was until that batch is committed"
    )
    return [why]
