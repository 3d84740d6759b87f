"""The record of an application's last run, from which the next one continues, or raises."""

from hashlib import sha256

import msgspec

from thulawa.brokers.port import read_partition
from thulawa.core.types import ProducerRecord, TopicPartition
from thulawa.errors import Fenced, StateError
from thulawa.spark.continuous.continuous_program import ContinuousProgram

_RUN = b"run"


class RunRecord(msgspec.Struct, frozen=True):
    """What a run leaves for the check of the next one, in partition 0 of the progress topic.

    ``tasks`` are the partitions of each task; ``internal_ids`` the ids of changelogs and
    repartition topics; ``hosts`` the number of hosts.
    """

    run: str
    topology: str
    topic_ids: dict[str, str]
    internal_ids: dict[str, str]
    tasks: dict[str, list[tuple[str, list[int]]]]
    hosts: int


def check_previous_run(program: ContinuousProgram) -> None:
    """Raise `StateError` unless the application can continue from its last run.

    A changed topology, other partitions or a topic that was created again would continue with the
    state of other keys.
    """
    name, last = program.application_id, _last_run(program)
    if last is None:
        if program.broker.committed(name).offsets:
            raise StateError(
                f"{name!r} has run with micro-batches: use another application_id, or remove what "
                "it left with thulawa reset"
            )
        return
    this = _run_record(program)
    changed = [what for what in ("topology", "tasks") if getattr(last, what) != getattr(this, what)]
    if changed:
        what = "topology" if "topology" in changed else "assignment of partitions to tasks"
        raise StateError(
            f"the {what} of {name!r} has changed since its last run, and its state belongs to the "
            "old one: use another application_id"
        )
    now = this.topic_ids | this.internal_ids
    for topic, before in (last.topic_ids | last.internal_ids).items():
        if now.get(topic) != before:
            raise StateError(
                f"the topic {topic!r} was deleted since the last run of {name!r}, whose state "
                "belongs to its records: use another application_id"
            )


def record_run(program: ContinuousProgram) -> None:
    """Record this run, and fence the hosts of the last one, which may have been more.

    In this order: a host of the last run that is retried finds the record and gives up.
    """
    last = _last_run(program)
    run = _run_record(program)
    record = ProducerRecord(_RUN, msgspec.json.encode(run), partition=0)
    program.broker.append(program.progress_topic, [record])
    for host in range(max(run.hosts, 0 if last is None else last.hosts)):
        if (transactional_id := program.transactional_id(host)) is not None:
            program.broker.stream_producer(transactional_id).close()


def check_run(program: ContinuousProgram) -> None:
    """Raise `Fenced` if the application has been started again since this program."""
    last = _last_run(program)
    if last is not None and last.run != program.run:
        raise Fenced(f"{program.application_id!r} has been started again elsewhere")


def _run_record(program: ContinuousProgram) -> RunRecord:
    topics = [topic for topic in program.plan.readers if topic not in program.plan.repartitions]
    tasks = {
        str(task): sorted(
            (topic, list(numbers))
            for topic, numbers in program.plan.parts[task.group].tasks[task.number].items()
        )
        for task in program.tasks
    }
    return RunRecord(
        program.run,
        sha256(str(program.plan.topology.describe()).encode()).hexdigest(),
        program.broker.topic_ids(*topics),
        program.broker.topic_ids(*program.internal_topics(), *program.changelogs()),
        tasks,
        len(program.hosts),
    )


def _last_run(program: ContinuousProgram) -> RunRecord | None:
    if not program.broker.partitions(program.progress_topic):
        return None
    found = None
    for record in read_partition(program.broker, TopicPartition(program.progress_topic, 0)):
        if record.value is not None:
            found = msgspec.json.decode(record.value, type=RunRecord)
    return found
