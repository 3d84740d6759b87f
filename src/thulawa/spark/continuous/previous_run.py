"""The record of an application's last run, from which the next one continues, or raises."""

from hashlib import sha256

import msgspec

from thulawa.brokers.port import read_to_end
from thulawa.core.types import ProducerRecord
from thulawa.errors import StateError
from thulawa.spark.continuous.continuous_program import ContinuousProgram

_RUN = b"run"  # the key of run records in the progress topic; others are tasks


class RunRecord(msgspec.Struct, frozen=True):
    """What a run of an application leaves for the check of the next one, in the progress topic."""

    topology: str
    topic_ids: dict[str, str]
    partitions: dict[str, int]
    hosts: int


def check_previous_run(program: ContinuousProgram) -> None:
    """Raise `StateError` unless the application can continue from its last run; fence that run.

    A changed topology, other partitions or a topic that was created again would continue with the
    state of other keys. Record this run for the next one.
    """
    broker, name = program.broker, program.application_id
    topics = [topic for topic in program.plan.readers if topic not in program.plan.repartitions]
    run = RunRecord(
        sha256(str(program.plan.topology.describe()).encode()).hexdigest(),
        broker.topic_ids(*topics),
        {topic: broker.partitions(topic)[topic] for topic in topics},
        len(program.hosts),
    )
    last = _last_run(program)
    if last is None and broker.committed(name).offsets:
        raise StateError(
            f"{name!r} has run with micro-batches: use another application_id, or remove what it "
            "left with thulawa reset"
        )
    if last is not None:
        for topic, found in run.topic_ids.items():
            if last.topic_ids.get(topic, found) != found:
                raise StateError(
                    f"the topic {topic!r} was deleted and created again since the last run of "
                    f"{name!r}: use another application_id"
                )
        if last.topology != run.topology or last.partitions != run.partitions:
            what = "topology" if last.topology != run.topology else "number of partitions"
            raise StateError(
                f"the {what} of {name!r} has changed since its last run, and its state belongs to "
                "the old one: use another application_id"
            )
        for host in range(max(last.hosts, run.hosts)):
            if (transactional_id := program.transactional_id(host)) is not None:
                broker.stream_producer(transactional_id).close()
    record = ProducerRecord(_RUN, msgspec.json.encode(run), partition=0)
    broker.append(program.progress_topic, [record])


def _last_run(program: ContinuousProgram) -> RunRecord | None:
    found = None
    for record in read_to_end(program.broker, program.progress_topic):
        if record.key == _RUN and record.value is not None:
            found = msgspec.json.decode(record.value, type=RunRecord)
    return found
