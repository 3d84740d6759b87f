"""Tasks in a Python worker, cached between micro-batches and never ahead of committed state."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator

from thulawa.core.gc_freeze import gc_disabled
from thulawa.engine.lane_sums import LaneSums
from thulawa.runtime.global_tables import GlobalTables
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.shuffled import ShuffledRecords, split_by_sender
from thulawa.runtime.task import Task
from thulawa.spark.event_loop import run_async
from thulawa.spark.micro_batch.changelog_output import TaskChangelogs
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.restoring import RestoringTask
from thulawa.spark.micro_batch.wire import (
    AT_END,
    BEHIND,
    CLOCK,
    Packed,
    block_of,
    opened_records,
    records_of,
    unpack_records,
)
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores, StateBackend

__all__ = ["HostedTask", "find_task"]


class HostedTask:
    """One task of a stage with its stores."""

    def __init__(self, program: Program, part: StagedSubTopology, number: int) -> None:
        self._program = program
        self._part = part
        self._number = number
        topology = program.plan.topology
        tables = program.plan.global_tables(part.group)
        names = dict.fromkeys((*part.group.stores, *(table.stores[0] for table in tables)))
        self._stores = PagedStores({name: topology.stores[name] for name in names})
        self._output = TaskOutput(program, part, number)
        self._changelogs = TaskChangelogs(program, part)
        self._task: Task | None = None
        self._globals: GlobalTables | None = None

    def run(
        self, rows: Iterable[Packed], now: int, kept: StateBackend
    ) -> Generator[Iterable[Packed], None, None]:
        """Process the rows of a micro-batch; yield the outputs, then write the stores to ``kept``.

        In this order Spark moves the outputs while the stores are written. Nothing remains of a
        micro-batch that fails or is abandoned.
        """
        try:
            with gc_disabled():
                yield from self._run(rows, now, kept)
        except BaseException:
            self.close()
            raise

    def _run(
        self, rows: Iterable[Packed], now: int, kept: StateBackend
    ) -> Iterator[Iterable[Packed]]:
        same = self._stores.open(kept)
        if self._task is not None and not same:
            self.close()
            self._stores.forget()  # what a processor writes in close() belongs to no micro-batch
        if self._task is None:
            self._task = self._create(now)
        task = self._task
        task.context.wall_clock_time = now
        shuffled = ShuffledRecords()
        for row in sorted(rows, key=lambda row: row.place):
            if row.data in (BEHIND, AT_END):
                task.set_behind(row.topic, row.part, behind=row.data == BEHIND)
            elif row.topic in self._program.plan.repartitions:
                self._add_repartitioned(shuffled, row)
            else:
                self._add(task, row)
        for topic, partition in shuffled.topic_partitions():
            task.add(topic, partition, shuffled.take(topic, partition))
        task.run()
        task.advance_wall_clock(now)
        snapshot = self._changelogs.write(self._stores, task.snapshot(), now, self._output)
        yield self._output.take()
        self._stores.flush(kept, snapshot)

    def close(self) -> None:
        """Evict the task; its state is in the stores."""
        task, self._task = self._task, None
        if task is not None:
            task.abandon()

    def take_lanes(self) -> dict[str, LaneSums]:
        """Return the lane statistics of async nodes since the last call."""
        return {} if self._task is None else self._task.take_lanes()

    def take_counts(self) -> RecordCounts:
        """Return the drop counts since the last call."""
        counts: RecordCounts = Counter() if self._task is None else self._task.take_counts()
        if self._globals is not None:
            counts.update(self._globals.counts)
            self._globals.counts.clear()
        return counts

    def next_wall_clock_time(self) -> int | None:
        """Return when the task needs to run even without records; None: never."""
        return None if self._task is None else self._task.next_wall_clock_time

    def _add_repartitioned(self, shuffled: ShuffledRecords, row: Packed) -> None:
        repartition = self._program.plan.repartitions[row.topic]
        codec = ColumnCodec(repartition.value_serde)
        if not repartition.is_topic:
            place = row.place.rpartition("/")[0]  # without the row number at its end
            shuffled.add(row.topic, row.part, place, unpack_records(row.data, codec))
            return
        senders = split_by_sender(opened_records(block_of(row), codec))
        for sender, records in senders.items():
            shuffled.add(row.topic, row.part, sender, records)

    def _add(self, task: Task, row: Packed) -> None:
        if row.topic == CLOCK:
            return
        if row.topic in self._program.plan.global_topics:
            assert self._globals is not None
            for offset, time, key, value, _ in records_of(row):
                self._globals.update(row.topic, offset, key, value, time)
            return
        task.add_block(row.topic, row.part, block_of(row))

    def _create(self, now: int) -> Task:
        self._output.clear()  # left by a failed attempt
        topology, options = self._program.plan.topology, self._program.options
        tables = self._program.plan.global_tables(self._part.group)
        self._globals = GlobalTables(
            topology, options, self._output.send, self._stores.backing, tables
        )
        task = Task(
            self._part.group,
            topology,
            self._output,
            number=self._number,
            partitions=self._part.tasks[self._number],
            options=options,
            backing=self._stores.backing,
            global_stores=self._globals.stores,
            wall_clock_time=now,
            run_async=run_async,
            snapshot=self._stores.snapshot or None,
        )
        self._output.attach(task.context)
        return task


_tasks: dict[tuple[str, int, int], HostedTask | RestoringTask] = {}


def find_task(program: Program, part: StagedSubTopology, number: int) -> HostedTask | RestoringTask:
    """Return this worker's task of a number; create it if there is none.

    A worker serves one application at a time (`session.worker_pools`), so tasks of another run are
    evicted: that run has ended.
    """
    place = (program.run, part.group.id, number)
    for old in [name for name in _tasks if name[0] != program.run]:
        _tasks.pop(old).close()
    if place not in _tasks:
        kind = HostedTask if program.recovery is None else RestoringTask
        _tasks[place] = kind(program, part, number)
    return _tasks[place]
