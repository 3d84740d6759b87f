"""A topology as a continuous application on Spark."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.transactions import Guarantee
from thulawa.brokers.port import Broker, open_broker
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.names import check_name
from thulawa.core.serdes import Serde
from thulawa.core.types import Offsets
from thulawa.errors import ConfigurationError, ThulawaError
from thulawa.runtime.partition_groups import Assignment
from thulawa.runtime.planning import Plan, plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.continuous.continuous_program import (
    ContinuousProgram,
    assign_hosts,
    partitioned_outputs,
)
from thulawa.spark.continuous.control_channel import HostStatus
from thulawa.spark.continuous.spark_job import SparkJob, as_query_failed, host_count
from thulawa.spark.session.spark_session import session
from thulawa.topology.nodes import GlobalTable, Sink, Source
from thulawa.topology.topology import Topology


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
    """Run a topology continuously: results are visible milliseconds after their records arrive.

    One Spark job hosts the tasks of the application for as long as it runs; ``parallelism`` is the
    number of its Spark tasks, by default one for each core, at most one for each stream task.
    Under ``exactly_once`` results become visible every ``commit_interval``; under ``at_least_once``
    at once.
    """

    def __init__(  # noqa: PLR0913 each is optional and named
        self,
        topology: Topology,
        *,
        application_id: str,
        log: str | Connection,
        spark: Any = None,
        options: TaskOptions | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        parallelism: int | None = None,
        processing_guarantee: Guarantee = "exactly_once",
        commit_interval: Duration = "100 ms",
        transaction_timeout: Duration = "1 minute",
        clock: Callable[[int], int] | None = None,
    ) -> None:
        self.application_id = check_name(application_id, "application")
        self._topology = topology
        self._broker = open_broker(log)
        self._spark = spark
        self._parallelism = parallelism
        self._clock = clock
        chosen = options or TaskOptions()
        self._options = replace(
            chosen,
            commit=chosen.commit or "batch",
            max_ahead="1 day" if chosen.max_ahead is None else chosen.max_ahead,
        )
        self._planning = {"key_serde": key_serde, "value_serde": value_serde}
        self._settings = {
            "exactly_once": processing_guarantee == "exactly_once",
            "commit_interval": milliseconds(commit_interval, name="commit_interval") / 1_000,
            "transaction_timeout": milliseconds(transaction_timeout) / 1_000,
        }
        self._job: SparkJob | None = None
        self._program: ContinuousProgram | None = None

    def start(self, timeout: Duration = "2 minutes") -> Self:
        """Check the program and start it; return when all its tasks run, or raise."""
        spark = self._spark or session(self.application_id)
        self._program = program = build_program(
            self._topology,
            self._broker,
            application_id=self.application_id,
            options=self._options,
            hosts=lambda tasks: host_count(spark, tasks, self._parallelism),
            planning=self._planning,
            **self._settings,
        )
        create_internal_topics(program)
        self._job = job = SparkJob(spark, program, self._clock)
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
