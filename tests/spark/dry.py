"""Applications without Spark: real tasks in simulated micro-batches, or simulated queries.

`DryQuery` runs the code of Spark's workers on records in memory. `Application` is a `Streams` whose
queries are fakes that end, fail or run as a test wants.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from thulawa.brokers.embedded import Log
from thulawa.brokers.embedded.batches import Columns
from thulawa.runtime.partition_groups import PartitionGrouper, by_number
from thulawa.runtime.planning import Plan, StagedSubTopology, plan
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.first_stage import run_first_stage
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import ShippedProgram
from thulawa.spark.micro_batch.task_host import find_task
from thulawa.spark.micro_batch.wire import (
    CLOCK,
    COUNTS,
    SINK,
    Packed,
    packed_batch,
    unpack_outgoing,
)
from thulawa.streams import Restart, StreamsBuilder
from thulawa.topology.topology import Topology

__all__ = [
    "SOON",
    "Application",
    "DryQuery",
    "Input",
    "Query",
    "RunningQuery",
    "Start",
    "TaskState",
    "dry_run",
    "source_chunks",
]

SOON = Restart(first=1, longest=2, attempts=3)
_runs = count()


class Input(NamedTuple):
    """A record of a topic."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Any = None


Inputs: TypeAlias = Mapping[tuple[str, int], Sequence[Input]]  # by topic and partition
Rows: TypeAlias = list[dict[str, Any]]


class TaskState(dict[str, bytes]):
    """The entries of one task in Spark's state store."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def remove(self, name: str) -> None:
        del self[name]


State: TypeAlias = dict[tuple[int, str, int], TaskState]  # by stage, prefix and task


class DryQuery:
    """One application, micro-batch by micro-batch.

    ``state`` is the committed state, ``now`` the wall clock in ms. With a ``checkpoint`` the query
    can be started again with an edited topology.
    """

    def __init__(
        self,
        topology: Topology,
        partitions: Mapping[str, int],
        options: TaskOptions | None = None,
        checkpoint: Checkpoint | None = None,
        grouper: PartitionGrouper = by_number,
        application: str = "app",
    ) -> None:
        self._application = application
        self.state: State = {}
        self.now = 2_000_000_000_000
        self._options = options or TaskOptions(commit="batch", max_ahead="1 day")
        self._checkpoint = checkpoint
        self._grouper = grouper
        self.start(topology, partitions)

    def start(
        self, topology: Topology, partitions: Mapping[str, int], *, allow_state_loss: bool = False
    ) -> None:
        """Plan a topology as `Streams` does when it starts."""
        assigned = None if self._checkpoint is None else self._checkpoint.assignment()
        self.plan = plan(
            topology,
            partitions,
            grouper=self._grouper,
            assigned=assigned,
            keeps_time=self._options.on_bad_timestamp == "partition_time",
        )
        if self._checkpoint is None:
            self._prefixes: Mapping[int, str] = {part: str(part) for part in self.plan.parts}
        else:
            before = self._checkpoint.query_path
            accepted = self._checkpoint.accept(self.program(), allow_state_loss=allow_state_loss)
            self._prefixes = accepted.prefixes
            if self._checkpoint.query_path != before:
                self.state = {}
        self.restart()

    def restart(self) -> None:
        """Replace all workers, so that nothing remains in memory."""
        self._shipped = ShippedProgram(self.program())

    def program(self) -> Program:
        run = f"{self._application}/{next(_runs)}"
        return Program(self._application, run, self.plan, self._options)

    @property
    def slots(self) -> list[int]:
        """The slots of the program, one per task of the sink."""
        return self._shipped.open().slots

    def batch(self, inputs: Inputs) -> Rows:
        """Run a micro-batch and commit it; return the output records."""
        rows, self.state = self.attempt(inputs)
        return rows

    def attempt(self, inputs: Inputs) -> tuple[Rows, State]:
        """Run a micro-batch without a commit; return the output records and the new state.

        Without records, tasks that have run before are called by the wall clock.
        """
        leaving, state = self.attempt_packed(inputs)
        return _left(leaving), state

    def attempt_packed(self, inputs: Inputs) -> tuple[list[Packed], State]:
        """Run a micro-batch without a commit; return the rows for the sink and the new state."""
        topics = self._shipped.open().topics
        # one Spark partition each
        read = [
            [*source_chunks({place: records})]
            for place, records in inputs.items()
            if place[0] in topics
        ]
        return self._run(read)

    def held(self) -> int:
        """Return the number of records that are buffered in tasks."""
        program = self._shipped.open()
        tasks: list[Task | None] = [
            getattr(find_task(program, part, number), "_task", None)
            for part in self.plan.parts.values()
            for number in range(len(part.tasks) if part.stage else 0)
        ]
        return sum(len(q) for task in tasks if task for q in task._queues.values())

    def attempt_read(self, read: Sequence[Sequence[Chunk | Behind]]) -> tuple[Rows, State]:
        """Run a micro-batch of chunks, by Spark partition, without a commit."""
        leaving, state = self._run(read)
        return _left(leaving), state

    def _run(self, read: Sequence[Sequence[Chunk | Behind]]) -> tuple[list[Packed], State]:
        program = self._shipped.open()
        state = {place: TaskState(kept) for place, kept in self.state.items()}
        rows = [
            row
            for one in read
            for batch in run_first_stage(self._shipped, iter(one))
            for row in _unpacked(batch)
        ]
        for stage in range(1, self.plan.stages + 1):
            mine = [row for row in rows if row.stage == stage]
            rows = [row for row in rows if row.stage != stage]
            for part in self.plan.parts.values():
                for task in range(len(part.tasks) if part.stage == stage else 0):
                    own = [
                        row for row in mine if row.task == task and _is_for(row, part, self.plan)
                    ]
                    place = stage, self._prefixes[part.group.id], task
                    if own or (not read and place in state):
                        kept = state.setdefault(place, TaskState())
                        run = find_task(program, part, task).run(own, self.now, kept)
                        rows += chain.from_iterable(run)
        return sorted((row for row in rows if row.stage == SINK), key=lambda row: row.place), state


def dry_run(
    topology: Topology, inputs: Mapping[str, list[tuple[bytes | None, bytes | None]]]
) -> list[str]:
    """Run one micro-batch of keys and values; return the topics of the output records.

    Records are 10 ms apart in each topic, and 1 ms later in each further topic.
    """
    query = DryQuery(topology, dict.fromkeys(inputs, 1))
    records = {
        (topic, 0): [Input(n, 10 * n + place, *record) for n, record in enumerate(pairs)]
        for place, (topic, pairs) in enumerate(inputs.items())
    }
    return [row["topic"] for row in query.batch(records)]


def _is_for(row: Packed, part: StagedSubTopology, planned: Plan) -> bool:
    if row.topic == COUNTS:
        return False
    if row.topic == CLOCK or row.topic in planned.global_topics:
        return row.part == part.group.id
    return planned.readers[row.topic] == part.group.id


def _unpacked(batch: pa.RecordBatch) -> Iterable[Packed]:
    return (Packed(*row) for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))


def _left(rows: list[Packed]) -> Rows:
    if not rows:
        return []
    return [row for out in unpack_outgoing(iter([packed_batch(rows)])) for row in out.to_pylist()]


def source_chunks(inputs: Inputs) -> Iterator[Chunk]:
    """Yield the records of each partition in chunks, as sources do."""
    for (topic, partition), records in inputs.items():
        if records:
            offsets, times, keys, values, headers = zip(*records, strict=True)
            named = [tuple((one["key"], one["value"]) for one in row or ()) for row in headers]
            yield Chunk(topic, partition, offsets[0], Columns(offsets, times, keys, values, named))


class Query:
    """A query that ends at once, with an error or without."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def wait(self) -> Exception | None:
        return self._error

    def stop(self) -> None: ...


class RunningQuery(Query):
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stopped = threading.Event()

    def wait(self) -> Exception | None:
        self.stopped.wait()
        return None

    def stop(self) -> None:
        self.stopped.set()


Start: TypeAlias = Query | Exception


class Application(Streams):
    """An application without Spark; each start returns, or raises, the next of ``starts``."""

    def __init__(self, folder: Path, starts: Sequence[Start], **options: Any) -> None:
        with Log(f"file:{folder}/topics") as log:
            if "in" not in log.topics():
                log.create_topic("in")
        builder = StreamsBuilder()
        builder.stream("in").to("out")
        chosen: dict[str, Any] = {
            "application_id": "app",
            "log": f"file:{folder}/topics",
            "checkpoint": str(folder / "checkpoint"),
        }
        super().__init__(options.pop("topology", builder.build()), **(chosen | options))
        self._starts: Iterator[Start] = iter(starts)

    def _session(self) -> Any:
        context = SimpleNamespace(
            master="local[1]", accumulator=lambda value, _: SimpleNamespace(value=value)
        )
        return SimpleNamespace(sparkContext=context)

    def _create_query(self, program: Program) -> Any:
        start = next(self._starts)
        if isinstance(start, Exception):
            raise start
        return start
