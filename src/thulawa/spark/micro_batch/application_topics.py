"""Create the topics of an application: repartitions, changelogs and outputs."""

import logging
from collections.abc import Iterable

from thulawa.errors import StateError
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.manifest import manifest_topic
from thulawa.spark.micro_batch.program import Program

__all__ = ["create_topics", "owned_topics"]

_log = logging.getLogger("thulawa.streams")


def owned_topics(program: Program) -> list[str]:
    """Return the names of all internal topics of the application, existing or not."""
    made = program.plan
    # a repartition that is a shuffle now may have been a topic in an earlier version
    names = [f"{program.application_id}-{name}" for name in made.repartitions]
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
    _create_internal(program, topics)
    written: dict[str, int] = {}
    for part in program.plan.parts.values():
        for sink in part.group.sinks:
            if isinstance(sink.topic, str) and not sink.internal:
                written.setdefault(sink.topic, len(part.tasks))
    for topic, partitions in written.items():
        topics.create(topic, partitions)
    for topic in dead_letters:
        topics.create(topic, 1)
    if program.changelogs:  # last: its existence implies that of the changelogs
        _create_compacted(topics, program.offsets_topic, len(program.slots))
    return topics.partitions(tuple(written))


def _create_internal(program: Program, topics: StreamsBroker) -> None:
    """Create repartition topics and changelogs."""
    for repartition in program.plan.repartitions.values():
        _log.info("the repartition %s is %s", repartition.topic, repartition.kind)
        if repartition.is_topic:
            name = f"{program.application_id}-{repartition.topic}"
            topics.create(name, repartition.partitions, keep=True)
    for part in program.plan.parts.values():
        for store in part.group.stores:
            if store in program.changelogs:
                _create_compacted(topics, program.changelogs[store], len(part.tasks))


def _create_compacted(topics: StreamsBroker, name: str, tasks: int) -> None:
    """Create a topic with one partition per task; raise if it exists with another number."""
    there = topics.partitions((name,)).get(name, tasks)
    if there != tasks:
        raise StateError(
            f"the topic {name!r} was written by {there} tasks, and the application would have "
            f"{tasks}: it may hold the only copy of the state, so do not delete it.\n"
            "Start the application with the checkpoint and the program that wrote it, or discard "
            "its state with thulawa reset"
        )
    topics.create(name, tasks, compact=True)
