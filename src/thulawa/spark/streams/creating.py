"""The topics that an application creates when it starts."""

from collections.abc import Iterable

from thulawa.spark.streams.logs import Topics
from thulawa.spark.streams.program import Program

__all__ = ["create_topics"]


def create_topics(program: Program, topics: Topics, dead_letters: Iterable[str]) -> dict[str, int]:
    """Create the topics that are missing; return the partitions of those that sinks write to.

    Outputs get as many partitions as there are tasks that write them, topics of dead letters one.
    """
    if program.has_timers:
        topics.create(program.clock_topic, 1)
    for repartition in program.plan.repartitions.values():
        if repartition.is_topic:
            name = f"{program.application_id}-{repartition.topic}"
            topics.create(name, repartition.partitions)
    _create_changelogs(program, topics)
    written: dict[str, int] = {}
    for part in program.plan.parts.values():
        for sink in part.group.sinks:
            if isinstance(sink.topic, str) and not sink.internal:
                written.setdefault(sink.topic, len(part.tasks))
    for topic, partitions in written.items():
        topics.create(topic, partitions)
    for topic in dead_letters:
        topics.create(topic, 1)
    if program.changelogs:  # last: where it is, they are
        topics.create(program.offsets_topic, len(program.slots), compact=True)
    return topics.partitions(tuple(written))


def _create_changelogs(program: Program, topics: Topics) -> None:
    for part in program.plan.parts.values():
        for store in part.group.stores:
            if store in program.changelogs:
                topics.create(program.changelogs[store], len(part.tasks), compact=True)
