"""A topology as a continuous application on Spark."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

from thulawa.brokers.port import Broker, open_broker
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.sizes import byte_size
from thulawa.core.types import Offsets
from thulawa.errors import ConfigurationError, ThulawaError
from thulawa.runtime.application_states import State, StateMachine
from thulawa.runtime.partition_groups import Assignment
from thulawa.runtime.planning import Plan, plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application.execution import Execution
from thulawa.spark.application.streams import Streams, with_keywords
from thulawa.spark.continuous.continuous_program import (
    ContinuousProgram,
    assign_hosts,
    partitioned_outputs,
)
from thulawa.spark.continuous.control_channel import HostStatus
from thulawa.spark.continuous.previous_run import check_previous_run, record_run
from thulawa.spark.continuous.spark_job import SparkJob, as_query_failed, host_count
from thulawa.spark.micro_batch.application_topics import input_topics, partition_counts
from thulawa.spark.micro_batch.program_shipping import check_picklable
from thulawa.spark.micro_batch.restore import Restoring
from thulawa.spark.session.spark_session import session
from thulawa.topology.nodes import Sink
from thulawa.topology.topology import Topology

_POLL_SECONDS = 0.01


class Hosts(Protocol):
    """The running hosts of an application."""

    error: BaseException | None
    ended: threading.Event

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each host."""

    def stop(self) -> None:
        """Ask the hosts to finish, commit and end."""

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
    counts = partition_counts(broker, input_topics(topology))
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
    broker.create_topic(program.progress_topic, 1 + len(program.tasks), compact=True)
    existing = set(broker.topics())
    for topic in program.options.handlers.dead_letter_topics:
        if topic not in existing:
            broker.create_topic(topic)


def await_processed(program: ContinuousProgram, hosts: Hosts, deadline: float) -> None:
    """Wait until all records that are in the topics now are processed, and what becomes of them."""
    broker, plan_ = program.broker, program.plan
    topics = [program.topic_name(topic) for topic in plan_.readers]
    while True:
        ends, global_ends = broker.end_offsets(*topics), broker.end_offsets(*plan_.global_topics)
        while not (_reached(program, ends) and _have_read(hosts, len(program.hosts), global_ends)):
            check_alive(program, hosts, deadline)
            time.sleep(_POLL_SECONDS)
        if broker.end_offsets(*topics) == ends:
            return


def check_alive(program: ContinuousProgram, hosts: Hosts, deadline: float) -> None:
    """Raise the error of hosts that have ended, or `TimeoutError` after the deadline."""
    if hosts.ended.is_set():
        if hosts.error is None:
            raise ThulawaError(f"{program.application_id!r} has been stopped")
        raise as_query_failed(program.application_id, hosts.error)
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


class ContinuousStreams(Streams):
    """An application with ``execution="continuous"``; created by `Streams`.

    One Spark job hosts the tasks for as long as the application runs. Under ``exactly_once``
    results become visible with each commit; under ``at_least_once`` at once.
    """

    @with_keywords(Execution)  # type: ignore[arg-type] # of a subclass
    def __init__(self, topology: Topology, execution: Execution) -> None:
        execution.check_continuous()
        self.application_id = execution.application_id
        self.log = execution.log
        self.on_restoring = None
        self._topology = topology
        self._execution = execution
        self._options = execution.task_options
        self._broker = open_broker(execution.log)
        self._machine = StateMachine()
        self._job: SparkJob | None = None
        self._hosted: ContinuousProgram | None = None

    # --- lifecycle

    def start(self, timeout: Duration = "2 minutes") -> Self:
        """Check the program and start it; return when all its tasks run, or raise."""
        self._check_new()
        self._machine.go(State.REBALANCING)
        try:
            self._start_job(milliseconds(timeout) / 1_000)
        except BaseException:
            self._machine.go(State.PENDING_ERROR)
            self._machine.go(State.ERROR)
            raise
        self._machine.go(State.RUNNING)
        threading.Thread(
            target=self._watch, name=f"streams-{self.application_id}", daemon=True
        ).start()
        return self

    def _start_job(self, timeout: float) -> None:
        spark = self._execution.spark or session(self.application_id)
        check_picklable(self._topology)
        program = self._build(lambda tasks: host_count(spark, tasks, self._execution.parallelism))
        check_previous_run(program)
        create_internal_topics(program)
        record_run(program)
        self._hosted = program
        self._job = job = SparkJob(spark, program, self._execution.clock)
        deadline = time.monotonic() + timeout
        restored = 0
        while sum(status.running for status in job.status().values()) < len(program.hosts):
            found = self._restoring(job)
            if found.records != restored:  # a restore may take longer than the timeout
                restored, deadline = found.records, time.monotonic() + timeout
                if self.on_restoring is not None:
                    self.on_restoring(found)
            if job.ended.is_set():
                raise as_query_failed(self.application_id, job.error)
            if time.monotonic() > deadline:
                job.cancel()
                raise ConfigurationError(
                    f"only {len(job.status())} of the {len(program.hosts)} Spark tasks of "
                    f"{self.application_id!r} have started: other jobs may hold the cores; lower "
                    "parallelism, or stop them"
                )
            time.sleep(_POLL_SECONDS)

    def _restoring(self, job: SparkJob) -> Restoring:
        known = [one for status in job.status().values() for one in status.restoring.values()]
        return Restoring(sum(done for done, _ in known), sum(total for _, total in known))

    def _build(self, hosts: Callable[[int], int]) -> ContinuousProgram:
        chosen = self._execution
        return build_program(
            self._topology,
            self._broker,
            application_id=self.application_id,
            options=chosen.task_options,
            hosts=hosts,
            planning={
                "key_serde": chosen.key_serde,
                "value_serde": chosen.value_serde,
                "grouper": chosen.grouper,
            },
            exactly_once=chosen.processing_guarantee == "exactly_once",
            commit_interval=milliseconds(chosen.commit_interval) / 1_000,
            transaction_timeout=milliseconds(chosen.transaction_timeout or "1 minute") / 1_000,
            state_dir=chosen.state_dir,
            state_memory=byte_size(chosen.state_memory),
        )

    def _watch(self) -> None:
        """Change the state when the job has ended."""
        job = self._running()
        job.ended.wait()
        if job.error is None or self.state is State.PENDING_SHUTDOWN:
            self._machine.go(State.PENDING_SHUTDOWN)
            self._machine.go(State.NOT_RUNNING)
        else:
            self._machine.go(State.PENDING_ERROR)
            self._machine.go(State.ERROR)

    def drain(self, timeout: Duration) -> bool:
        """Finish the calls in flight and commit; return whether it has ended in time."""
        self._machine.go(State.PENDING_SHUTDOWN)
        if self._job is None:
            return True
        self._job.stop()
        return self._job.ended.wait(milliseconds(timeout) / 1_000)

    def stop(self, timeout: Duration | None = "1 minute") -> bool:
        """Finish the calls in flight, commit and end; return whether it has ended in time.

        After ``timeout`` the Spark job is cancelled: what is not committed leaves no trace.
        """
        ended = self.drain("1 minute" if timeout is None else timeout)
        if self._job is None:
            self._machine.go(State.NOT_RUNNING)
        elif not ended:
            self._job.cancel()
        return ended

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait for the end; raise the error that ended it, or return whether it has ended."""
        job = self._running()
        ended = job.ended.wait(None if timeout is None else milliseconds(timeout) / 1_000)
        if ended and job.error is not None and self.state is not State.NOT_RUNNING:
            raise as_query_failed(self.application_id, job.error)
        return ended

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until everything that was in the topics when this was called has been processed."""
        job = self._running()
        assert self._hosted is not None
        await_processed(self._hosted, job, time.monotonic() + milliseconds(timeout) / 1_000)

    def reset(self) -> None:
        """Delete the application's internal topics and committed offsets.

        The next start begins again. Raise `ConfigurationError` while it runs.
        """
        if self.state in (State.REBALANCING, State.RUNNING, State.PENDING_SHUTDOWN):
            raise ConfigurationError(f"{self.application_id!r} is running; stop it first")
        program = self._build(lambda _: 1)
        # progress first: without it, what is left of an interrupted reset is not continued
        owned = [program.progress_topic, *program.internal_topics(), *program.changelogs()]
        existing = set(self._broker.topics())
        for topic in owned:
            if topic in existing:
                self._broker.delete_topic(topic)
        self._broker.delete_groups(self.application_id)

    # --- observation

    def status(self) -> dict[int, HostStatus]:
        """Return the last status of each Spark task of the application."""
        return self._running().status()

    def lag(self) -> dict[str, dict[int, int]]:
        """Return the number of records of each partition that are not committed as processed.

        Asks the broker. Empty before the start.
        """
        if self._hosted is None:
            return {}
        topics = [self._hosted.topic_name(topic) for topic in self._hosted.plan.readers]
        done = self._broker.committed(self.application_id, topics).offsets
        starts = self._broker.start_offsets(*topics)
        return {
            topic: {
                number: max(0, end - done.get(topic, {}).get(number, starts[topic][number]))
                for number, end in ends.items()
            }
            for topic, ends in self._broker.end_offsets(*topics).items()
        }

    def _running(self) -> SparkJob:
        if self._job is None:
            raise ConfigurationError(f"{self.application_id!r} has not been started")
        return self._job


def _only_in_micro_batches(name: str) -> Any:
    def reject(self: ContinuousStreams, *_: Any, **__: Any) -> Any:
        raise ConfigurationError(
            f"{self.application_id!r} has execution='continuous', which has no {name}() yet"
        )

    return reject


for _name in ("batch_size", "check_state", "lanes", "metrics", "owned_resources", "planned",
              "process_batches", "progress", "restore", "store"):  # fmt: skip
    setattr(ContinuousStreams, _name, _only_in_micro_batches(_name))
