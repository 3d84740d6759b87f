"""The topics of an application: repartitions, changelogs and outputs.

Only this application reads a repartition topic, and each record once. So no record may be left
unread when a changed program no longer reads the topic, and no record of an earlier run may be read
again.
"""

import logging
from collections.abc import Collection, Iterable

from thulawa.brokers.port import Broker
from thulawa.core.types import Offsets
from thulawa.errors import ConfigurationError, StateError
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.manifest import manifest_topic
from thulawa.spark.micro_batch.program import Program
from thulawa.topology.topology import Topology

_log = logging.getLogger("thulawa.streams")


def owned_topics(program: Program) -> list[str]:
    """Return the names of all internal topics of the application, existing or not."""
    # a repartition that is a shuffle now may have been a topic in an earlier version
    names = [program.broker_name(name) for name in program.plan.repartitions]
    names.append(manifest_topic(program.application_id))
    if program.has_timers:
        names.append(program.clock_topic)
    if program.changelogs:
        names += [program.offsets_topic, *program.changelogs.values()]
    return names


def create_topics(
    program: Program, topics: StreamsBroker, dead_letters: Iterable[str]
) -> dict[str, int]:
    """Create missing topics; return the number of partitions of each output topic.

    An output gets as many partitions as tasks write to it, a dead-letter topic gets one.
    """
    if program.has_timers:
        topics.create(program.clock_topic, 1)
    for repartition in program.plan.repartitions.values():
        _log.info("the repartition %s is %s", repartition.topic, repartition.kind)
        if repartition.is_topic:
            name = program.broker_name(repartition.topic)
            topics.create(name, repartition.partitions, unlimited=True)
    written: dict[str, int] = {}
    for part in program.plan.parts.values():
        for store in sorted(program.changelogs.keys() & {*part.group.stores}):
            _create_compacted(topics, program.changelogs[store], len(part.tasks))
        for sink in part.group.sinks:
            if isinstance(sink.topic, str) and not sink.internal:
                written.setdefault(sink.topic, len(part.tasks))
    for topic, partitions in {**dict.fromkeys(dead_letters, 1), **written}.items():
        topics.create(topic, partitions)
    if program.changelogs:  # last: its existence implies that of the changelogs
        _create_compacted(topics, program.offsets_topic, len(program.slots))
    return topics.broker.partitions(*written)


def _create_compacted(topics: StreamsBroker, name: str, tasks: int) -> None:
    """Create a topic with one partition per task; raise if it exists with another number."""
    there = topics.broker.partitions(name).get(name, tasks)
    if there != tasks:
        raise StateError(
            f"the topic {name!r} was written by {there} tasks, and the application would have "
            f"{tasks}: it may hold the only copy of the state, so do not delete it.\n"
            "Start the application with the checkpoint and the program that wrote it, or discard "
            "its state with thulawa reset"
        )
    topics.create(name, tasks, compact=True)


def prepare_internal_topics(
    program: Program, topics: StreamsBroker, checkpoint: Checkpoint, *, allow_state_loss: bool
) -> Offsets:
    """Check a changed program against the internal topics of the previous one.

    Raise `StateError` if records would be lost. Return the start offsets of internal topics for a
    query without a checkpoint: after what an earlier run has left there.
    """
    former = checkpoint.internal_topics()
    here = topics.broker.partitions(*program.internal_topics)
    for repartition in program.plan.repartitions.values():
        topic = program.broker_name(repartition.topic)
        if (count := here.get(topic, repartition.partitions)) != repartition.partitions:
            raise StateError(
                f"the repartition topic {topic!r} has {count} partitions, and the program needs "
                f"{repartition.partitions}: an earlier run of the application created it; "
                "remove it with thulawa reset"
            )
    if former is None:
        return topics.broker.end_offsets(*here)
    entering = {*program.internal_topics} - former
    losses = _unread(former - {*program.internal_topics}, topics, checkpoint)
    losses += _cut_off(program, entering, checkpoint)
    for loss in losses:
        if not allow_state_loss:
            raise StateError(f"{loss}; or discard these records with allow_state_loss=True")
        _log.warning("%s loses records: %s", program.application_id, loss)
    topics.broker.delete_records(topics.broker.end_offsets(*entering & here.keys()))
    return {}


def unread_records(
    topics: StreamsBroker, checkpoint: Checkpoint, names: Collection[str]
) -> Offsets:
    """Return the number of records of each partition that no committed batch has read."""
    done, starts = checkpoint.committed_offsets(), topics.broker.start_offsets(*names)
    return {
        topic: {
            number: max(
                0, end - max(done.get(topic, {}).get(number, 0), starts[topic].get(number, 0))
            )
            for number, end in ends.items()
        }
        for topic, ends in topics.broker.end_offsets(*names).items()
    }


def _unread(gone: Collection[str], topics: StreamsBroker, checkpoint: Checkpoint) -> list[str]:
    """Return a message for each topic with records that the changed program would never read."""
    unread = unread_records(topics, checkpoint, topics.broker.partitions(*gone))
    return [
        f"the repartition topic {topic!r} holds {waiting} records that the program no "
        "longer reads: run the program as it was until it has read them, and name "
        "repartitions with Grouped or Repartitioned so that edits do not rename them"
        for topic, partitions in sorted(unread.items())
        if (waiting := sum(partitions.values()))
    ]


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


def input_topics(topology: Topology) -> list[str]:
    """Return the topics that a program reads and does not write itself."""
    groups = topology.subtopologies()
    inner = {str(sink.topic) for group in groups for sink in group.sinks if sink.internal}
    read = [t for group in groups for source in group.sources for t in source.topics]
    tables = [node.topic for group in groups if group.is_global for node in group.nodes]  # type: ignore[attr-defined]
    return [topic for topic in (*read, *tables) if topic not in inner]


def partition_counts(broker: Broker, topics: list[str]) -> dict[str, int]:
    """Return the partition counts of topics; raise `ConfigurationError` if one is missing."""
    counts = broker.partitions(*topics)
    if missing := sorted(set(topics) - set(counts)):
        raise ConfigurationError(
            f"the topic {missing[0]!r} does not exist; create it before the application starts"
        )
    return counts
