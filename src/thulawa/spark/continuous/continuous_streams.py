"""A topology as a continuous application on Spark."""

import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol, Self

import msgspec

from thulawa.brokers.port import Broker, open_broker, read_to_end
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.types import Offsets, ProducerRecord
from thulawa.errors import ConfigurationError, StateError, ThulawaError
from thulawa.runtime.partition_groups import Assignment
from thulawa.runtime.planning import Plan, plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application.execution import Execution
from thulawa.spark.continuous.continuous_program import (
    ContinuousProgram,
    assign_hosts,
    partitioned_outputs,
)
from thulawa.spark.continuous.control_channel import HostStatus
from thulawa.spark.continuous.spark_job import SparkJob, as_query_failed, host_count
from thulawa.spark.micro_batch.program_shipping import check_picklable
from thulawa.spark.session.spark_session import session
from thulawa.topology.nodes import GlobalTable, Sink, Source
from thulawa.topology.topology import Topology

_RUN = b"run"  # the key of run records; others are tasks


class Hosts(Protocol):
    """The running hosts of an application."""

    error: BaseException | None
    ended: threading.Event

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each host."""

    def stop(self) -> None:
        """Tell the hosts to finish, commit and end."""

    def cancel(self) -> None:
        """End the hosts without finishing what is in flight."""


def build_program(
    topology: Topology,
    broker: Broker,
    *,
    application_id: str,
    options: TaskOptions,
    hosts: Callable[[int], int],
    planning: dict[str, Any] | None = None,
    **settings: Any,
) -> ContinuousProgram:
    """Plan a topology with all its repartitions as topics, and assign its tasks to hosts.

    ``hosts`` returns the number of hosts for a number of tasks; ``planning`` are further options of
    `thulawa.runtime.planning.plan`.
    """
    made = _planned(topology, broker, planning or {})
    tasks = sum(len(part.tasks) for part in made.parts.values())
    return ContinuousProgram(
        application_id=application_id,
        broker=broker,
        plan=made,
        options=options,
        hosts=assign_hosts(made, hosts(tasks)),
        outputs=broker.partitions(*partitioned_outputs(made)),
        **settings,
    )


def _planned(topology: Topology, broker: Broker, planning: dict[str, Any]) -> Plan:
    nodes = topology.nodes.values()
    names = {
        topic
        for node in nodes
        if isinstance(node, Source) and not node.internal
        for topic in node.topics
    } | {node.topic for node in nodes if isinstance(node, GlobalTable)}
    counts = broker.partitions(*names)
    if missing := sorted(names - set(counts)):
        raise ConfigurationError(
            f"the topic {missing[0]!r} does not exist; create it before the application starts"
        )
    inner = frozenset(
        node.topic
        for node in nodes
        if isinstance(node, Sink) and node.internal and isinstance(node.topic, str)
    )
    return plan(topology, counts, assigned=Assignment(durable=inner), **planning)


def create_internal_topics(program: ContinuousProgram) -> None:
    """Create the repartition topics, changelogs, progress and dead-letter topics."""
    broker = program.broker
    for topic, count in program.internal_topics().items():
        broker.create_topic(topic, count, unlimited=True)
    for topic, count in program.changelogs().items():
        broker.create_topic(topic, count, compact=True)
    broker.create_topic(program.progress_topic, 1, compact=True)
    existing = set(broker.topics())
    for topic in program.options.handlers.dead_letter_topics:
        if topic not in existing:
            broker.create_topic(topic)


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


def await_processed(program: ContinuousProgram, hosts: Hosts, deadline: float) -> None:
    """Wait until all records that are in the topics now are processed, and what becomes of them."""
    broker, plan_ = program.broker, program.plan
    topics = [program.topic_name(topic) for topic in plan_.readers]
    while True:
        ends, global_ends = broker.end_offsets(*topics), broker.end_offsets(*plan_.global_topics)
        while not (_reached(program, ends) and _have_read(hosts, len(program.hosts), global_ends)):
            check_alive(program, hosts, deadline)
            time.sleep(0.01)
        if broker.end_offsets(*topics) == ends:
            return


def check_alive(program: ContinuousProgram, hosts: Hosts, deadline: float) -> None:
    """Raise the error of hosts that have ended, or `TimeoutError` after the deadline."""
    if hosts.ended.is_set():
        raise hosts.error or ThulawaError(f"{program.application_id!r} has been stopped")
    if time.monotonic() > deadline:
        raise TimeoutError(f"{program.application_id!r} has not processed its input in time")


def _reached(program: ContinuousProgram, ends: Offsets) -> bool:
    broker = program.broker
    done = broker.committed(program.application_id, ends).offsets
    return all(
        done.get(topic, {}).get(number, 0) >= end
        for topic, at in ends.items()
        for number, end in at.items()
        if end
    )


def _have_read(hosts: Hosts, count: int, ends: Offsets) -> bool:
    if not ends:
        return True
    known = hosts.status()
    return len(known) == count and all(
        status.global_positions.get(topic, {}).get(number, 0) >= end
        for status in known.values()
        for topic, at in ends.items()
        for number, end in at.items()
    )


class ContinuousStreams:
    """An application with ``execution="continuous"``; created by `Streams`.

    One Spark job hosts the tasks for as long as the application runs. Under ``exactly_once``
    results become visible with each commit; under ``at_least_once`` at once.
    """

    def __init__(self, topology: Topology, execution: Execution) -> None:
        if not isinstance(topology, Topology):
            raise ConfigurationError(
                f"a topology is needed, not a {type(topology).__name__}: builder.build() gives one"
            )
        execution.check_continuous()
        self.application_id = execution.application_id
        self.topology = topology
        self._execution = execution
        self._broker = open_broker(execution.log)
        self._job: SparkJob | None = None
        self._program: ContinuousProgram | None = None

    def start(self, timeout: Duration = "2 minutes") -> Self:
        """Check the program and start it; return when all its tasks run, or raise."""
        chosen = self._execution
        spark = chosen.spark or session(self.application_id)
        check_picklable(self.topology)
        self._program = program = build_program(
            self.topology,
            self._broker,
            application_id=self.application_id,
            options=chosen.task_options,
            hosts=lambda tasks: host_count(spark, tasks, chosen.parallelism),
            planning={
                "key_serde": chosen.key_serde,
                "value_serde": chosen.value_serde,
                "grouper": chosen.grouper,
            },
            exactly_once=chosen.processing_guarantee == "exactly_once",
            commit_interval=milliseconds(chosen.commit_interval) / 1_000,
            transaction_timeout=milliseconds(chosen.transaction_timeout or "1 minute") / 1_000,
        )
        create_internal_topics(program)
        check_previous_run(program)
        self._job = job = SparkJob(spark, program, chosen.clock)
        deadline = time.monotonic() + milliseconds(timeout) / 1_000
        while sum(status.running for status in job.status().values()) < len(program.hosts):
            self._check_alive(deadline)
            time.sleep(0.01)
        return self

    def stop(self, timeout: Duration = "1 minute") -> bool:
        """Finish the calls in flight, commit and end; return whether it has ended in time."""
        job = self._job
        if job is None:
            return True
        job.stop()
        ended = job.ended.wait(milliseconds(timeout) / 1_000)
        if not ended:
            job.cancel()
        return ended

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait for the end; raise the error that ended it, or return whether it has ended."""
        job = self._running()
        ended = job.ended.wait(None if timeout is None else milliseconds(timeout) / 1_000)
        if ended and job.error is not None:
            raise as_query_failed(self.application_id, job.error)
        return ended

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until everything that was in the topics when this was called has been processed."""
        job = self._running()
        assert self._program is not None
        deadline = time.monotonic() + milliseconds(timeout) / 1_000
        try:
            await_processed(self._program, job, deadline)
        except TimeoutError:
            raise
        except BaseException as error:
            if job.error is None:
                raise
            raise as_query_failed(self.application_id, job.error) from error

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each Spark task of the application."""
        return self._running().status()

    def _running(self) -> SparkJob:
        if self._job is None:
            raise ConfigurationError(f"{self.application_id!r} has not been started")
        return self._job

    def _check_alive(self, deadline: float) -> None:
        job = self._running()
        if job.ended.is_set() and job.error is not None:
            raise as_query_failed(self.application_id, job.error)
        if time.monotonic() > deadline:
            status, program = job.status(), self._program
            assert program is not None
            job.cancel()
            raise ConfigurationError(
                f"only {len(status)} of the {len(program.hosts)} Spark tasks of "
                f"{self.application_id!r} have started: other jobs may hold the cores; lower "
                "parallelism, or stop them"
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
