"""Streams: a topology as a running application on Spark."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from uuid import uuid4

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.transactions import Guarantee
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError, StateLoss, ThulawaError
from thulawa.core.names import check_name
from thulawa.core.serdes import Serde
from thulawa.core.types import Offsets, TopicPartition
from thulawa.engine.lane_sums import LaneFigures
from thulawa.runtime.application_states import State, StateMachine
from thulawa.runtime.batch_size import Fetching
from thulawa.runtime.groups import Assignment, PartitionGrouper, by_number
from thulawa.runtime.metrics import NodeMetrics
from thulawa.runtime.options import TaskOptions
from thulawa.runtime.planning import Plan, plan
from thulawa.runtime.restarts import Restart, policy_of
from thulawa.spark.application.ownership import Ownership
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.application_topics import create_topics, owned_topics
from thulawa.spark.micro_batch.brokers import topics_at
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.dropped_records import CountReport
from thulawa.spark.micro_batch.identity import (
    Former,
    find_former,
    last_checkpoint,
    refuse_recreated_topics,
)
from thulawa.spark.micro_batch.interactive_queries import ReadOnlyStore, read_store
from thulawa.spark.micro_batch.internal_topics import prepare_inner_topics
from thulawa.spark.micro_batch.manifest import write_manifest
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import check_travels
from thulawa.spark.micro_batch.progress import FetchStatistics
from thulawa.spark.micro_batch.recovery import (
    RestoredStore,
    Restoring,
    begin_anew,
    refuse_lost_changelogs,
    restore,
    unrestorable,
)
from thulawa.spark.micro_batch.runner import StreamsQuery, own_session
from thulawa.spark.micro_batch.shared_folder import check_shared
from thulawa.spark.session.builder import session
from thulawa.topology.nodes import AsyncCall
from thulawa.topology.topology import Topology

__all__ = ["Streams"]

_log = logging.getLogger("thulawa.streams")
Answer = Literal["stop", "restart"]


class Streams:
    """Run a topology as one streaming query.

    ``log`` is where its topics are (``file:./topics``, ``kafka://host:9092``, or a `Connection`
    with passwords); ``checkpoint`` is the local folder that makes it exactly once over restarts,
    and belongs to this application alone: by default ``checkpoints/`` and the application's id in
    the log's folder, or, with Kafka, in the one where the program runs. A start that does not find
    it goes on where the application was, or is refused: it never begins again in silence
    (``allow_state_loss`` goes on with empty stores, `reset` begins again). With Kafka
    ``processing_guarantee="at_least_once"`` saves the transactions, ``policies`` say what becomes
    of oversized records and of those for topics that are not there, and a batch must end within
    ``transaction_timeout`` (5 minutes, and no more than the brokers allow). Topics without serdes
    use ``key_serde`` (text) and ``value_serde`` (JSON).

    A batch takes up to ``max_records`` records, as soon as the one before is done, or every
    ``trigger``; with a `Fetching` as many as take the time it asks for.

    Applications on one session share its cores by their ``weight``.

    ``on_error`` says what an error that no handler took does: ``"stop"``, ``"restart"``, a
    `Restart`, or a function of the error that answers ``"stop"`` or ``"restart"``.

    With ``changelogs`` every store has a changelog, not only those that ask for one. An
    application whose stores all have one, and whose checkpoint is lost, rebuilds it when it
    starts (`on_restoring` is told how far it is), or by `restore`.

    .. versionadded:: 0.1.0
    """

    def __init__(  # noqa: PLR0913 options by name
        self,
        topology: Topology,
        *,
        application_id: str,
        log: str | Connection,
        checkpoint: str | None = None,
        spark: Any = None,
        options: TaskOptions | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        grouper: PartitionGrouper = by_number,
        max_records: int | Fetching | None = 100_000,
        processing_guarantee: Guarantee = "exactly_once",
        policies: Policies | None = None,
        transaction_timeout: Duration | None = None,
        trigger: Duration | None = None,
        weight: int = 1,
        on_error: Answer | Restart | Callable[[Exception], Answer] = "stop",
        allow_state_loss: bool = False,
        changelogs: bool = False,
        clock: Callable[[int], int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        check_name(application_id, "application")
        if not isinstance(topology, Topology):
            raise ConfigurationError(
                f"a topology is needed, not a {type(topology).__name__}: builder.build() gives one"
            )
        if isinstance(max_records, int) and max_records < 1:
            raise ConfigurationError("max_records must be at least 1, or None for all there are")
        self.application_id = application_id
        self._topology = topology
        self.log = log
        self._topics = topics_at(log, processing_guarantee, policies, _seconds(transaction_timeout))
        self._guarantee = processing_guarantee
        self._policies = policies
        self._checkpoint = Checkpoint(checkpoint or f"{self._topics.checkpoints}/{application_id}")
        self._ownership = Ownership(application_id, self._topics.place, self._checkpoint.root)
        self._spark = spark
        chosen = options or TaskOptions()
        self._options = replace(
            chosen,
            commit=chosen.commit or "batch",  # Spark commits batches: caches let go with them
            max_ahead="1 day" if chosen.max_ahead is None else chosen.max_ahead,
        )
        self._serdes = key_serde, value_serde
        self._grouper = grouper
        self._max_records = max_records
        self._trigger = None if trigger is None else milliseconds(trigger, name="trigger")
        if type(weight) is not int or weight < 1:
            raise ConfigurationError(f"weight must be a whole number from 1, not {weight!r}")
        self._weight = weight
        self._on_error = policy_of(on_error)
        self._allow_state_loss = allow_state_loss
        self._changelogs = changelogs
        self.on_restoring: Callable[[Restoring], None] | None = None
        self._clock = clock
        self._settings = dict(settings or {})
        self._machine = StateMachine()
        self._query: StreamsQuery | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        # who starts the query, and then watches it: the one thread that cannot wait for its end
        self._keeper: threading.Thread | None = None
        self._program: Program | None = None
        self._reports: dict[str, LaneReport] = {}
        self._counts: CountReport | None = None

    # --- life

    @property
    def state(self) -> State:
        """Where the application is."""
        return self._machine.state

    def add_state_listener(self, listener: Callable[[State, State], None]) -> None:
        """Have ``listener(new, old)`` called at every change of state."""
        self._machine.listeners.append(listener)

    def start(self) -> Self:
        """Check everything, then start the query; errors of the program are raised here."""
        self._check_new()
        self._keeper = threading.current_thread()
        self._machine.go(State.REBALANCING)
        try:
            self._ownership.acquire()
            self._query = self._begun()
        except BaseException as error:
            self._end(error)
            raise
        self._machine.go(State.RUNNING)
        self._keeper = threading.Thread(
            target=self._watch, name=f"streams-{self.application_id}", daemon=True
        )
        self._keeper.start()
        if self._stopping.is_set():
            self._query.stop()  # asked for while it started
        return self

    def restore(self) -> list[RestoredStore]:
        """Rebuild a checkpoint that is lost from the changelogs, without starting the query.

        Give what was read back; nothing when there is a checkpoint, or no changelog yet.
        """
        self._check_new()
        with self._ownership.held():
            self._program = self._made()
            if not self._program.changelogs:
                raise ConfigurationError(
                    f"{self.application_id!r} has no changelogs; give them to its stores with "
                    "Materialized(changelog=True), or to all with Streams(changelogs=True)"
                )
            return self._restored()

    def reset(self) -> None:
        """Forget state, positions and inner topics (`remains`): the next start begins again.

        An application that runs is refused.
        """
        root, topics = self.remains()
        with Ownership(self.application_id, self._topics.place, root).held():
            for topic in topics:
                self._topics.delete(topic)
            self._topics.forget(self.application_id)
            shutil.rmtree(root)

    def _check_new(self) -> None:
        if self.state is not State.CREATED:
            raise ConfigurationError(
                f"{self.application_id!r} has been started already; make another Streams of it"
            )

    def stop(self, timeout: Duration | None = None) -> bool:
        """End the query, waiting at most ``timeout``; tell whether it has ended.

        A batch that has not committed leaves no trace and runs again at the next start. A state
        listener, or ``on_error``, that calls this does not wait: the end comes after it.
        """
        self._machine.go(State.PENDING_SHUTDOWN)
        self._stopping.set()
        if self._keeper is None:  # it was never started
            self._ended.set()
        elif self._query is not None and not self._ended.is_set():
            # apart: Spark's stop waits for the batch to be torn down, however long that takes
            threading.Thread(target=self._query.stop, daemon=True).start()
        if self._keeper is threading.current_thread():
            return self._ended.is_set()
        ended = self._ended.wait(_seconds(timeout))
        if ended:
            self._machine.go(State.NOT_RUNNING)
        return ended

    def drain(self, timeout: Duration) -> bool:
        """Read no further records; return whether the batch at hand has committed by then.

        Call `stop` after it: an application does not read on after this.
        """
        return self._query is None or self._query.drain(milliseconds(timeout) / 1000)

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait for the end; raise the error that ended it. Tell whether it has ended."""
        ended = self._ended.wait(_seconds(timeout))
        if ended and self._error is not None:
            raise self._error
        return ended

    def process_all_available(self, timeout: Duration = "10 minutes") -> None:
        """Wait until everything that was in the topics when this was called has been processed.

        This includes what it becomes in repartition topics. What a task holds back for records
        that are not written yet (a ``max_task_idle`` longer than 0) may be processed after that.
        """
        self._check_started()
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        assert self._query is not None
        self._await_read(self._query, deadline)
        if self._query.has_more:
            # records that were read may wait for some that came since
            self._await_read(self._query, deadline)

    def _await_read(self, query: StreamsQuery, deadline: float) -> None:
        """Wait until the topics are read to their ends, and what that brought about too."""
        for names in query.rounds():
            wanted = self._topics.end_offsets(names)
            while not self._reached(wanted):
                self._check_alive(deadline)
                time.sleep(0.02)

    def process_batches(self, count: int, timeout: Duration = "10 minutes") -> None:
        """Wait for so many batches more; with timers they come without records too."""
        self._check_started()
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        last = self._checkpoint.last_batch() + count
        while self._checkpoint.last_batch() < last:
            self._check_alive(deadline)
            time.sleep(0.02)

    def _check_started(self) -> None:
        if self._query is None:
            raise self._error or ConfigurationError(f"{self.application_id!r} has not been started")

    def _check_alive(self, deadline: float) -> None:
        if self._ended.is_set():
            raise self._error or ThulawaError(f"{self.application_id!r} has been stopped")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.application_id!r} has not come so far in the time given")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- looking in

    def progress(self) -> list[dict[str, Any]]:
        """Give Spark's reports of the last batches."""
        return [] if self._query is None else self._query.progress()

    def lag(self) -> dict[str, dict[int, int]]:
        """Give how many records each partition holds that no committed batch has read.

        Asks the log, or the brokers. Empty when it was never started.
        """
        return {} if self._query is None else self._query.lag()

    def fetching(self) -> FetchStatistics | None:
        """Tell how many records the next batch may take, and what binds; None: a fixed number."""
        return None if self._query is None else self._query.fetching

    def lanes(self) -> dict[str, dict[str, LaneFigures]]:
        """Give what the lanes have come to in all batches, by async node that has several."""
        return {node: report.lanes() for node, report in self._reports.items()}

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return how many records each node left out since the start, by the node's name."""
        return {} if self._counts is None else self._counts.metrics()

    def store(self, name: str) -> ReadOnlyStore:
        """Look into a store as the last committed batch left it."""
        return read_store(self._session(), self._checkpoint, self._plan, name)

    @property
    def topology(self) -> Topology:
        """The program."""
        return self._topology

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """The topics of dead letters, of handlers and policies; they are created at the start."""
        of_policies = () if self._policies is None else (self._policies.dead_letter,)
        named = (*self._options.handlers.dead_letter_topics, *of_policies)
        return tuple(dict.fromkeys(topic for topic in named if topic is not None))

    def planned(self, *, check_topics: bool = True) -> Plan:
        """Give what would run where; refuse what cannot run. Nothing is started.

        Without ``check_topics`` every topic is taken to be there, with one partition.
        """
        names = tuple(_outer_topics(self._topology))
        counts = self._topics.partitions(names) if check_topics else dict.fromkeys(names, 1)
        if missing := sorted(set(names) - set(counts)):
            raise ConfigurationError(
                f"the topic {missing[0]!r} does not exist; create it before the application starts"
            )
        check_travels(self._topology)
        assigned = self._checkpoint.assignment() if check_topics else None
        return self._planned(counts, self._grouper, assigned)

    def remains(self) -> tuple[Path, list[str]]:
        """Name what the application leaves behind: its checkpoint, and its inner topics.

        These are repartitions that are topics, changelogs, the topic of their offsets, that of
        the clock, and the manifest. A checkpoint that is there and is another's, or none, is
        refused.
        """
        checkpoint = last_checkpoint(self.application_id, self._topics, self._checkpoint)
        checkpoint.check_belongs_to(self.application_id)
        counts = dict.fromkeys(_outer_topics(self._topology), 1)
        made = self._planned(counts, _of_no_matter, None)
        changelogs = self._changelog_topics(made)
        program = Program(self.application_id, "", made, self._options, changelogs=changelogs)
        return checkpoint.root, sorted(self._topics.partitions(tuple(owned_topics(program))))

    # --- inside

    @property
    def _plan(self) -> Plan:
        if self._program is None:
            raise ConfigurationError(f"{self.application_id!r} has not been started")
        return self._program.plan

    def _planned(
        self, counts: Mapping[str, int], grouper: PartitionGrouper, assigned: Assignment | None
    ) -> Plan:
        key_serde, value_serde = self._serdes
        return plan(
            self._topology,
            counts,
            key_serde=key_serde,
            value_serde=value_serde,
            grouper=grouper,
            assigned=assigned,
            keeps_time=self._options.on_bad_timestamp == "partition_time",
            exactly_once=self._guarantee == "exactly_once",
        )

    def _session(self) -> Any:
        if self._spark is None:
            self._spark = session(self.application_id)
        self._topics.register(self._spark)
        return self._spark

    def _made(self) -> Program:
        former = find_former(self.application_id, self._topics, self._checkpoint)
        if former is not None and former.manifest is not None:
            self._checkpoint.adopt(former.manifest.content)
        made = self.planned()
        changelogs = self._changelog_topics(made)
        run = f"{self.application_id}/{uuid4().hex}"
        program = Program(
            self.application_id, run, made, self._options, self._clock, changelogs=changelogs
        )
        starts = None
        if former is not None:
            refuse_recreated_topics(former, self._topics, program.topics)
            starts = self._starts_without_state(former, program)
        inner = prepare_inner_topics(
            program, self._topics, self._checkpoint, allow_state_loss=self._allow_state_loss
        )
        admitted = self._checkpoint.admit(
            self.application_id,
            made,
            allow_state_loss=self._allow_state_loss,
            changelogs=changelogs,
            has_timers=program.has_timers,
            starts={**inner, **(starts or {})},
        )
        program = replace(
            program,
            prefixes=admitted.prefixes,
            width=admitted.width,
            had_timers=admitted.has_timers,
        )
        if changelogs and not self._allow_state_loss:
            refuse_lost_changelogs(program, self._topics, self._checkpoint)
        outputs = create_topics(program, self._topics, self.dead_letter_topics)
        program = replace(program, outputs=outputs, outlets=self._topics.outlets())
        if starts is not None:
            begin_anew(program, self._topics, self._checkpoint)
        return program

    def _starts_without_state(self, former: Former, program: Program) -> Offsets | None:
        """Return where to go on without the state of an earlier life; None: it is restored.

        Raise `StateLoss` where something is lost and that is not allowed.
        """
        query = "" if former.manifest is None else former.manifest.query
        starts, batch = self._topics.committed(self.application_id, program.topics, query)
        why = unrestorable(program, self._topics)
        if not program.plan.stages and batch is not None:
            if self._topics.last_written(self.application_id, query) <= batch:
                return starts  # there is no state, and nothing was written after these offsets
            why = "its last batch was written, and how far it has read is only known there"
        if why is None:
            return None
        if not self._allow_state_loss:
            raise former.refused(why)
        _log.warning("%s begins with empty stores: %s", self.application_id, why)
        return starts

    def _new_reports(self) -> dict[str, LaneReport]:
        nodes = self._topology.nodes.values()
        names = [node.name for node in nodes if isinstance(node, AsyncCall) and node.has_lanes]
        return {name: LaneReport(self._session()) for name in names}

    def _changelog_topics(self, made: Plan) -> dict[str, str]:
        """Name the changelogs, as Kafka Streams does, of the stores that have one."""
        specs = made.topology.stores
        found = {
            store: f"{self.application_id}-{store}-changelog"
            for part in made.parts.values()
            for store in part.group.stores
            if self._changelogs or specs[store].changelog
        }
        if found and self._guarantee != "exactly_once":
            raise ConfigurationError(
                "a changelog must be written in one transaction with the offsets it belongs to: "
                'leave it out, or have processing_guarantee="exactly_once"'
            )
        return found

    def _restored(self) -> list[RestoredStore]:
        """Rebuild the checkpoint where it is lost and can be."""
        program, checkpoint = self._program, self._checkpoint
        assert program is not None
        found = None
        if program.changelogs:
            spark = own_session(self._session(), program, self._settings)
            found = restore(spark, program, self._topics, checkpoint, self.on_restoring)
        if checkpoint.query is None:
            checkpoint.begin(str(uuid4()), restoring=False)
        assert checkpoint.query is not None
        write_manifest(self._topics, program, checkpoint, checkpoint.query)
        return found or []

    def _begun(self) -> StreamsQuery:
        """Start a query of the program as it is to be now: topics may have got partitions."""
        self._program = self._made()
        if self._program.plan.stages:  # else the driver alone writes there
            check_shared(self._session(), self._checkpoint.root)
        self._reports = self._reports or self._new_reports()
        self._counts = self._counts or CountReport(self._session())
        self._restored()
        return self._started()

    def _started(self) -> StreamsQuery:
        assert self._program is not None
        return StreamsQuery(
            own_session(self._session(), self._program, self._settings),
            self._program,
            self._topics,
            self._checkpoint,
            max_records=self._max_records,
            trigger=self._trigger,
            weight=self._weight,
            reports=self._reports,
            counts=self._counts,
        )

    def _reached(self, wanted: Mapping[str, Mapping[int, int]]) -> bool:
        assert self._query is not None
        done = self._query.committed_offsets()
        return all(
            done.get(topic, {}).get(partition, 0) >= end
            for topic, ends in wanted.items()
            for partition, end in ends.items()
            if end > 0
        )

    def _watch(self) -> None:
        """Wait for the last query's end; whatever is raised here is the application's end too."""
        try:
            error: BaseException | None = self._last_error()
        except BaseException as raised:  # noqa: BLE001 whoever waits for the end must hear of it
            error = raised
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self._ownership.release()
        if error is None:
            self._machine.go(State.PENDING_SHUTDOWN)
        else:
            self._machine.go(State.PENDING_ERROR)
            self._machine.go(State.ERROR)
        self._machine.go(State.NOT_RUNNING)  # unless it ends with an error that nobody stopped at
        self._ended.set()

    def _last_error(self) -> Exception | None:
        """Wait for the query's end, and start it again if that is asked for; give what is left."""
        failures = 0
        while True:
            began = time.monotonic()
            error = self._wait_for_end()
            if self._stopping.is_set() or error is None:
                return None
            failures = 1 if self._lasted(began) else failures + 1
            left: Exception | None = error
            while left is not None and self._may_start_again(left, failures):
                left = self._start_again(left, failures)
                failures += left is not None
            if left is not None:
                return left

    def _wait_for_end(self) -> Exception | None:
        """Give what ended the query; if Spark itself has gone, that."""
        assert self._query is not None
        try:
            return self._query.wait()
        except Exception as error:  # noqa: BLE001 whoever waits for the end must hear of it
            return error

    def _lasted(self, began: float) -> bool:
        longest = self._on_error.longest if isinstance(self._on_error, Restart) else "1 minute"
        return time.monotonic() - began > milliseconds(longest) / 1000

    def _may_start_again(self, error: Exception, failures: int) -> bool:
        policy = self._on_error
        if callable(policy):
            try:
                answer = policy(error)
            except Exception as failure:
                raise failure from error
            return policy_of(answer) != "stop" and failures <= Restart().attempts
        return isinstance(policy, Restart) and failures <= policy.attempts

    def _start_again(self, error: Exception, failures: int) -> Exception | None:
        """Start the query again after an error; give the error of the start, if that failed."""
        policy = self._on_error if isinstance(self._on_error, Restart) else Restart()
        wait = min(milliseconds(policy.first) * 2 ** (failures - 1), milliseconds(policy.longest))
        _log.warning(
            "%s failed and starts again in %.1f s: %s", self.application_id, wait / 1000, error
        )
        self._machine.go(State.REBALANCING)
        if self._stopping.wait(wait / 1000):
            return None  # the query's end is found again, and is then the end
        try:
            self._query = self._begun()
        except StateLoss:
            raise  # no later start would do better
        except Exception as failure:  # noqa: BLE001 whatever it is, the policy decides
            return failure
        self._machine.go(State.RUNNING)
        if self._stopping.is_set():
            self._query.stop()  # asked for while it started
        return None


def _of_no_matter(partitions: Mapping[str, int]) -> list[set[TopicPartition]]:
    """Group partitions where only names are asked for: their numbers need not fit."""
    return by_number(partitions)


def _outer_topics(topology: Topology) -> list[str]:
    groups = topology.subtopologies()
    inner = {str(sink.topic) for group in groups for sink in group.sinks if sink.internal}
    read = [t for group in groups for source in group.sources for t in source.topics]
    tables = [node.topic for group in groups if group.is_global for node in group.nodes]  # type: ignore[attr-defined]
    return [topic for topic in (*read, *tables) if topic not in inner]


def _seconds(duration: Duration | None) -> float | None:
    return None if duration is None else milliseconds(duration) / 1000
