"""The topics between the sub-topologies of an application, over edits and restarts.

A record in such a topic is read by this application alone, once. So none may be left behind when
an edited program no longer reads the topic, and none of an earlier run may be read again.
"""

import logging
from collections.abc import Collection, Mapping

from thulawa.core.errors import StateError
from thulawa.core.types import Offsets
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program

__all__ = ["prepare_inner_topics"]

_log = logging.getLogger("thulawa.streams")


def prepare_inner_topics(
    program: Program, topics: Topics, checkpoint: Checkpoint, *, allow_state_loss: bool
) -> Offsets:
    """Check an edited program against the inner topics of the one before it.

    Raise `StateError` when records would be lost. Return where a query that has no checkpoint yet
    begins to read inner topics: behind what an earlier run has left in them.
    """
    former = checkpoint.inner_topics()
    here = topics.partitions(program.inner_topics)
    _refuse_resized(program, here)
    if former is None:
        return topics.end_offsets(tuple(here))
    losses = [*_unread(former - {*program.inner_topics}, topics, checkpoint)]
    entering = {*program.inner_topics} - former
    losses += _cut_off(program, entering, checkpoint)
    for loss in losses:
        if not allow_state_loss:
            raise StateError(f"{loss}; or lose these records with allow_state_loss=True")
        _log.warning("%s loses records: %s", program.application_id, loss)
    topics.delete_records(topics.end_offsets(tuple(entering & here.keys())))
    return {}


def _refuse_resized(program: Program, here: Mapping[str, int]) -> None:
    for repartition in program.plan.repartitions.values():
        topic = f"{program.application_id}-{repartition.topic}"
        count = here.get(topic, repartition.partitions)
        if count != repartition.partitions:
            raise StateError(
                f"the repartition topic {topic!r} has {count} partitions, and the program needs "
                f"{repartition.partitions}: an earlier run of the application left it; "
                "remove it with thulawa reset"
            )


def _unread(gone: Collection[str], topics: Topics, checkpoint: Checkpoint) -> list[str]:
    """Say which topics hold records that the edited program would never read."""
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
    """Say which shuffles became topics while a batch is half written: it must run as it began."""
    was_shuffle = [
        name
        for name in checkpoint.assignment().repartitions
        if f"{program.application_id}-{name}" in entering
    ]
    if not was_shuffle or not checkpoint.has_open_batch():
        return []
    why = (
        f"the repartition {was_shuffle[0]!r} was a shuffle and is now a topic, and the last batch "
        "was cut off: run the program as it was until that batch is committed"
    )
    return [why]
