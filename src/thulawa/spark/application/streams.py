"""Streams: a topology as a running application on Spark."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from itertools import repeat
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias
from uuid import uuid4

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.types import Offsets, TopicPartition
from thulawa.engine.statistics import LaneStatistics
from thulawa.errors import ConfigurationError, StateError, StateLoss, ThulawaError
from thulawa.runtime.application_states import Restart, State, StateMachine, policy_of
from thulawa.runtime.metrics import NodeMetrics
from thulawa.runtime.partition_groups import Assignment, PartitionGrouper, by_number
from thulawa.runtime.planning import Plan, plan
from thulawa.spark.application.execution import Execution
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.application_topics import (
    create_topics,
    input_topics,
    owned_topics,
    partition_counts,
    prepare_internal_topics,
    unread_records,
)
from thulawa.spark.micro_batch.brokers import sink_writer, streams_broker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.checkpoint_lock import CheckpointLock
from thulawa.spark.micro_batch.interactive_queries import ReadOnlyStore, read_store
from thulawa.spark.micro_batch.manifest import (
    PreviousRun,
    check_topic_ids,
    find_previous_run,
    last_checkpoint,
    publish_manifest,
)
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import CountReport, check_picklable
from thulawa.spark.micro_batch.restore import (
    RestoredStore,
    Restoring,
    begin_empty,
    check_changelogs,
    restore,
    why_not_restorable,
)
from thulawa.spark.micro_batch.runner import BatchSizeStatistics, StreamsQuery, own_session
from thulawa.spark.micro_batch.shared_folder import check_shared
from thulawa.spark.session.spark_session import session
from thulawa.topology.compatibility import StateMapping
from thulawa.topology.nodes import AsyncCall
from thulawa.topology.topology import Topology

_log = logging.getLogger("thulawa.streams")
_POLL_SECONDS = 0.02

P = ParamSpec("P")
Init: TypeAlias = Callable[["Streams", Topology, Execution], None]


def with_keywords(
    options: Callable[P, Execution],
) -> Callable[[Init], Callable[Concatenate["Streams", Topology, P], None]]:
    """Return a decorator that adds the keyword arguments of `Execution` to `Streams.__init__`."""

    def decorate(init: Init) -> Callable[Concatenate["Streams", Topology, P], None]:
        @wraps(init)
        def build(self: "Streams", topology: Topology, **keywords: Any) -> None:
            if not isinstance(topology, Topology):
                raise ConfigurationError(
                    f"a topology is needed, not a {type(topology).__name__}: "
                    "builder.build() gives one"
                )
            init(self, topology, options(**keywords))  # type: ignore[call-arg]

        return build  # type: ignore[return-value] # a type cannot say that all are keyword-only

    return decorate


class Streams:
    """Run a topology as one streaming query; the keyword arguments are those of `Execution`.

    ``Streams(topology, application_id="visits", log="file:./topics")``

    A start that does not find its checkpoint continues where the application was, or raises: it
    never begins again silently. ``allow_state_loss`` continues with empty stores, `reset` begins
    again. An application whose stores all have changelogs restores a lost checkpoint when it starts
    (`on_restoring` is called with the progress), or by `restore`.

    .. versionadded:: 0.1.0
    """

    def __new__(cls, *_: Any, **keywords: Any) -> Any:
        """Create the application of the chosen execution mode."""
        if cls is not Streams or keywords.get("execution") != "continuous":
            return super().__new__(cls)
        from thulawa.spark.continuous.continuous_streams import (  # noqa: PLC0415 seldom needed
            ContinuousStreams,
        )

        return super().__new__(ContinuousStreams)

    @with_keywords(Execution)
    def __init__(self, topology: Topology, execution: Execution) -> None:
        self.application_id = execution.application_id
        self.log = execution.log
        self.topology = topology
        """The topology that this application runs."""
        self.on_restoring: Callable[[Restoring], None] | None = None
        self._execution = execution
        self._options = execution.task_options
        self._on_error = policy_of(execution.on_error)
        self._backoff = self._on_error if isinstance(self._on_error, Restart) else Restart()
        self._topics = streams_broker(
            execution.log,
            execution.processing_guarantee,
            execution.policies,
            _seconds(execution.transaction_timeout),
        )
        default = f"{self._topics.checkpoints}/{self.application_id}"
        self._checkpoint = Checkpoint(execution.checkpoint or default)
        self._lock = self._lock_of(self._checkpoint.root)
        self._spark = execution.spark
        self._machine = StateMachine()
        self._query: StreamsQuery | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        # the thread that starts the query and then monitors it: it cannot wait for its own end
        self._keeper: threading.Thread | None = None
        self._program: Program | None = None
        self._reports: dict[str, LaneReport] = {}
        self._counts: CountReport | None = None

    # --- lifecycle

    @property
    def state(self) -> State:
        """The state of the application."""
        return self._machine.state

    def add_state_listener(self, listener: Callable[[State, State], None]) -> None:
        """Call ``listener(new, old)`` at every change of state."""
        self._machine.listeners.append(listener)

    def start(self) -> Self:
        """Check the program and start the query; raise what is wrong with it."""
        self._check_new()
        self._keeper = threading.current_thread()
        self._machine.go(State.REBALANCING)
        try:
            self._lock.acquire()
            self._check_mode()
            self._start_query()
        except BaseException as error:
            self._end(error)
            raise
        self._keeper = threading.Thread(
            target=self._watch, name=f"streams-{self.application_id}", daemon=True
        )
        self._keeper.start()
        return self

    def restore(self) -> list[RestoredStore]:
        """Restore a lost checkpoint from the changelogs, without starting the query.

        Return the restored stores; none if there is a checkpoint, or no changelog yet.
        """
        self._check_new()
        with self._lock:
            self._program = self._prepare_program()
            if not self._program.changelogs:
                raise ConfigurationError(
                    f"{self.application_id!r} has no changelogs; add them to its stores with "
                    "Materialized(changelog=True), or to all with Streams(changelogs=True)"
                )
            return self._restore_checkpoint(self._program)

    def reset(self) -> None:
        """Delete the application's checkpoint, internal topics and committed offsets.

        The next start begins again. Raise `StateError` or `ConfigurationError` while it runs.
        """
        root, topics = self.owned_resources()
        broker = self._topics.broker
        with self._lock_of(root):
            for topic in topics:
                broker.delete_topic(topic)
            broker.delete_groups(self.application_id)
            broker.delete_writer(sink_writer(self.application_id))
            shutil.rmtree(root)

    def _lock_of(self, root: Path) -> CheckpointLock:
        application = f"{self.application_id!r} at {self._topics.broker.address}"
        return CheckpointLock(root, application)

    def _check_mode(self) -> None:
        progress = f"{self.application_id}-progress"
        if self._topics.broker.partitions(progress):
            raise StateError(
                f"{self.application_id!r} has run with execution='continuous' (the topic "
                f"{progress!r} exists): use that, or another application_id"
            )

    def _check_new(self) -> None:
        if self.state is not State.CREATED:
            raise ConfigurationError(
                f"{self.application_id!r} has been started already; create another Streams"
            )

    def stop(self, timeout: Duration | None = None) -> bool:
        """Stop the query, waiting at most ``timeout``; return whether it has ended.

        A batch that has not committed leaves no trace and runs again at the next start. Called in
        a state listener or in ``on_error``, it returns at once: the query ends afterwards.
        """
        self._machine.go(State.PENDING_SHUTDOWN)
        self._stopping.set()
        if self._keeper is None:  # never started
            self._ended.set()
        elif self._query is not None and not self._ended.is_set():
            # on a thread: Spark's stop waits for the current batch without a timeout
            threading.Thread(target=self._query.stop, daemon=True).start()
        if self._keeper is threading.current_thread():
            return self._ended.is_set()
        ended = self._ended.wait(_seconds(timeout))
        if ended:
            self._machine.go(State.NOT_RUNNING)
        return ended

    def drain(self, timeout: Duration) -> bool:
        """Stop reading; return whether the current batch has committed within the timeout.

        Call `stop` afterwards: the application does not resume reading.
        """
        return self._query is None or self._query.drain(milliseconds(timeout) / 1000)

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait for the end; raise the error that ended it, or return whether it has ended."""
        ended = self._ended.wait(_seconds(timeout))
        if ended and self._error is not None:
            raise self._error
        return ended

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until everything that was in the topics when this was called has been processed.

        This includes the records that it becomes in repartition topics. Records that a task
        buffers while it waits for others (``max_task_idle`` above 0) may be processed later.
        """
        program = self._running_program()
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        self._await_read(program, deadline)
        if self._checkpoint.has_more():
            # records that were read may wait for some that were written since
            self._await_read(program, deadline)

    def _await_read(self, program: Program, deadline: float) -> None:
        """Wait until the topics, and then the repartition topics, are read to their ends.

        A record passes each repartition at most once, so after the last round everything that was
        in the topics before the first one has left the application.
        """
        internal = program.internal_topics
        for names in (program.topics, *repeat(internal, len(internal))):
            wanted = self._topics.broker.end_offsets(*names)
            self._poll(partial(self._has_read, wanted), deadline)

    def _has_read(self, wanted: Offsets) -> bool:
        done = self._checkpoint.committed_offsets()
        return all(
            done.get(topic, {}).get(partition, 0) >= end
            for topic, ends in wanted.items()
            for partition, end in ends.items()
        )

    def process_batches(self, count: int, timeout: Duration = "10 minutes") -> None:
        """Wait for ``count`` more batches; with timers there are batches without records."""
        self._running_program()
        last = self._checkpoint.last_batch() + count
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        self._poll(lambda: self._checkpoint.last_batch() >= last, deadline)

    def _poll(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done():
            if self._ended.is_set():
                raise self._error or ThulawaError(f"{self.application_id!r} has been stopped")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.application_id!r} has not processed its input in time")
            time.sleep(_POLL_SECONDS)

    def _running_program(self) -> Program:
        if self._query is None or self._program is None:
            raise self._error or ConfigurationError(f"{self.application_id!r} has not been started")
        return self._program

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- observation

    def progress(self) -> list[dict[str, Any]]:
        """Return Spark's progress reports of the last batches."""
        return [] if self._query is None else self._query.progress()

    def lag(self) -> dict[str, dict[int, int]]:
        """Return the number of records of each partition that no committed batch has read.

        Asks the broker. Empty before the start.
        """
        if self._query is None or self._program is None:
            return {}
        return unread_records(self._topics, self._checkpoint, self._program.topics)

    def batch_size(self) -> BatchSizeStatistics | None:
        """Return the limit of the next batch and what determines it; None if the limit is fixed."""
        return None if self._query is None else self._query.batch_size

    def lanes(self) -> dict[str, dict[str, LaneStatistics]]:
        """Return the lane statistics of all batches, by async node with several lanes."""
        return {node: report.lanes() for node, report in self._reports.items()}

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the numbers of dropped records since the start, by node name."""
        return {} if self._counts is None else self._counts.metrics()

    def store(self, name: str) -> ReadOnlyStore:
        """Return a read-only view of a store as of the last committed batch."""
        if self._program is None:
            raise ConfigurationError(f"{self.application_id!r} has not been started")
        return read_store(self._session(), self._checkpoint, self._program.plan, name)

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """The dead-letter topics of handlers and policies, which a start creates."""
        policies = self._execution.policies
        of_policies = () if policies is None else (policies.dead_letter,)
        named = (*self._options.handlers.dead_letter_topics, *of_policies)
        return tuple(dict.fromkeys(topic for topic in named if topic is not None))

    def planned(self, *, check_topics: bool = True) -> Plan:
        """Return the plan of a start; raise if the program cannot run. Nothing is started.

        Without ``check_topics`` every topic is assumed to exist, with one partition.
        """
        names = input_topics(self.topology)
        broker = self._topics.broker
        counts = partition_counts(broker, names) if check_topics else dict.fromkeys(names, 1)
        check_picklable(self.topology)
        assigned = self._checkpoint.assignment() if check_topics else None
        return self._planned(counts, self._execution.grouper, assigned)

    def check_state(self, made: Plan) -> StateMapping:
        """Return what a start would find of the state in the checkpoint, and what it would lose.

        Nothing is started or written; `StateMapping.losses` is empty if all state is kept.
        """
        return self._checkpoint.check(self._program_of(made))

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint."""
        return self._checkpoint.root

    def owned_resources(self) -> tuple[Path, list[str]]:
        """Return what `reset` would delete: the checkpoint folder and the internal topics.

        These are repartition topics, changelogs, and the topics for offsets, timers and the
        manifest. Raise `StateError` if the folder is not a checkpoint of this application.
        """
        checkpoint = last_checkpoint(self.application_id, self._topics, self._checkpoint)
        checkpoint.check_belongs_to(self.application_id)
        counts = dict.fromkeys(input_topics(self.topology), 1)
        program = self._program_of(self._planned(counts, _any_grouping, None))
        return checkpoint.root, sorted(self._topics.broker.partitions(*owned_topics(program)))

    # --- internals

    def _planned(
        self, counts: Mapping[str, int], grouper: PartitionGrouper, assigned: Assignment | None
    ) -> Plan:
        return plan(
            self.topology,
            counts,
            key_serde=self._execution.key_serde,
            value_serde=self._execution.value_serde,
            grouper=grouper,
            assigned=assigned,
            keeps_time=self._options.on_bad_timestamp == "partition_time",
            exactly_once=self._execution.processing_guarantee == "exactly_once",
        )

    def _session(self) -> Any:
        if self._spark is None:
            self._spark = session(self.application_id)
        self._topics.register(self._spark)
        return self._spark

    def _own_session(self, program: Program) -> Any:
        return own_session(self._session(), program, self._execution.settings or {})

    def _program_of(self, made: Plan) -> Program:
        run = f"{self.application_id}/{uuid4().hex}"
        topics = self._changelog_topics(made)
        clock = self._execution.clock
        return Program(self.application_id, run, made, self._options, clock, changelogs=topics)

    def _prepare_program(self) -> Program:
        """Plan the program, check it against what has run before, and create its topics."""
        topics, checkpoint = self._topics, self._checkpoint
        allow_state_loss = self._execution.allow_state_loss
        previous = find_previous_run(self.application_id, topics, checkpoint)
        if previous is not None and previous.manifest is not None:
            checkpoint.adopt(previous.manifest.manifest)
        program = self._program_of(self.planned())
        starts = None
        if previous is not None:
            check_topic_ids(previous, topics, program.topics)
            starts = self._starts_without_state(previous, program)
        inner = prepare_internal_topics(
            program, topics, checkpoint, allow_state_loss=allow_state_loss
        )
        program = checkpoint.accept(
            program, allow_state_loss=allow_state_loss, starts={**inner, **(starts or {})}
        )
        if program.changelogs and not allow_state_loss:
            check_changelogs(program, topics, checkpoint)
        outputs = create_topics(program, topics, self.dead_letter_topics)
        program = replace(program, outputs=outputs, limits=topics.limits)
        if starts is not None:
            begin_empty(program, topics, checkpoint)
        return program

    def _starts_without_state(self, previous: PreviousRun, program: Program) -> Offsets | None:
        """Return the offsets to continue from without restoring state; None: state is restored.

        Raise `StateLoss` if state would be lost and that is not allowed.
        """
        query = "" if previous.manifest is None else previous.manifest.query
        starts, batch = self._topics.broker.committed(
            self.application_id, program.topics, query=query
        )
        why = why_not_restorable(program, self._topics)
        if not program.plan.stages and batch is not None:
            if self._topics.last_written(self.application_id, query) <= batch:
                return starts  # no state, and no output after these offsets
            why = "its last batch was written, and its end offsets are only known there"
        if why is None:
            return None
        if not self._execution.allow_state_loss:
            raise previous.error(why)
        _log.warning("%s begins with empty stores: %s", self.application_id, why)
        return starts

    def _new_reports(self) -> dict[str, LaneReport]:
        nodes = self.topology.nodes.values()
        names = [node.name for node in nodes if isinstance(node, AsyncCall) and node.has_lanes]
        return {name: LaneReport(self._session()) for name in names}

    def _changelog_topics(self, made: Plan) -> dict[str, str]:
        """Return the names of changelog topics by store, named as in Kafka Streams."""
        specs = made.topology.stores
        found = {
            store: f"{self.application_id}-{store}-changelog"
            for part in made.parts.values()
            for store in part.group.stores
            if self._execution.changelogs or specs[store].changelog
        }
        if found and self._execution.processing_guarantee != "exactly_once":
            raise ConfigurationError(
                "a changelog must be written in one transaction with the offsets it belongs to: "
                'leave it out, or set processing_guarantee="exactly_once"'
            )
        return found

    def _restore_checkpoint(self, program: Program) -> list[RestoredStore]:
        """Restore the checkpoint if it is lost and has changelogs."""
        topics, checkpoint = self._topics, self._checkpoint
        found = None
        if program.changelogs:
            spark = self._own_session(program)
            found = restore(spark, program, topics, checkpoint, self.on_restoring)
        if checkpoint.query is None:
            checkpoint.begin(str(uuid4()), restoring=False)
        assert checkpoint.query is not None
        publish_manifest(topics, program, checkpoint, checkpoint.query)
        return found or []

    def _start_query(self) -> None:
        """Start a query with a new plan, because topics may have gained partitions."""
        self._program = program = self._prepare_program()
        if program.plan.stages:  # else only the driver writes there
            check_shared(self._session(), self._checkpoint.root)
        self._reports = self._reports or self._new_reports()
        self._counts = self._counts or CountReport(self._session())
        self._restore_checkpoint(program)
        self._query = self._create_query(program)
        self._machine.go(State.RUNNING)
        if self._stopping.is_set():
            self._query.stop()  # stop() was called during the start

    def _create_query(self, program: Program) -> StreamsQuery:
        trigger = self._execution.trigger
        return StreamsQuery(
            self._own_session(program),
            program,
            self._topics,
            self._checkpoint,
            max_records=self._execution.max_records,
            trigger=None if trigger is None else milliseconds(trigger, name="trigger"),
            weight=self._execution.weight,
            reports=self._reports,
            counts=self._counts,
        )

    def _watch(self) -> None:
        """Wait for the end of the last query; an error in this thread ends the application too."""
        try:
            error: BaseException | None = self._last_error()
        except BaseException as raised:  # noqa: BLE001 await_termination raises it
            error = raised
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self._lock.release()
        if error is None:
            self._machine.go(State.PENDING_SHUTDOWN)
        else:
            self._machine.go(State.PENDING_ERROR)
            self._machine.go(State.ERROR)
        self._machine.go(State.NOT_RUNNING)  # not allowed after ERROR, until stop() is called
        self._ended.set()

    def _last_error(self) -> Exception | None:
        """Wait for the query's end, restart it if ``on_error`` says so; return the final error."""
        failures = 0
        error: Exception | None = None
        while True:
            if error is None:  # a query is running
                began = time.monotonic()
                error = self._wait_for_end()
                if self._stopping.is_set() or error is None:
                    return None
                if time.monotonic() - began > milliseconds(self._backoff.longest) / 1000:
                    failures = 0
            failures += 1
            if not self._may_restart(error, failures):
                return error
            error = self._restart(error, failures)

    def _wait_for_end(self) -> Exception | None:
        """Return the error that ended the query, or the error of Spark if it has ended itself."""
        assert self._query is not None
        try:
            return self._query.wait()
        except Exception as error:  # noqa: BLE001 await_termination raises it
            return error

    def _may_restart(self, error: Exception, failures: int) -> bool:
        answer = self._on_error
        if callable(answer):
            try:
                answer = answer(error)
            except Exception as failure:
                raise failure from error
        return policy_of(answer) != "stop" and failures <= self._backoff.attempts

    def _restart(self, error: Exception, failures: int) -> Exception | None:
        """Restart the query after an error; return the error of the restart if it failed."""
        first, longest = milliseconds(self._backoff.first), milliseconds(self._backoff.longest)
        seconds = min(first * 2 ** (failures - 1), longest) / 1000
        _log.warning("%s failed and restarts in %.1f s: %s", self.application_id, seconds, error)
        self._machine.go(State.REBALANCING)
        if self._stopping.wait(seconds):
            return None  # the caller sees the ended query again and returns
        try:
            self._start_query()
        except StateLoss:
            raise  # another attempt would fail the same way
        except Exception as failure:  # noqa: BLE001 the policy decides
            return failure
        return None


def _any_grouping(partitions: Mapping[str, int]) -> list[set[TopicPartition]]:
    """Group partitions for a plan of which only the names are used."""
    return by_number(partitions)


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else milliseconds(duration) / 1000
