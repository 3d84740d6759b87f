"""Tasks in a Python worker, cached between micro-batches and never ahead of committed state."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec

from thulawa.core.gc_freeze import gc_disabled
from thulawa.core.records import Headers
from thulawa.engine.lane_sums import LaneSums
from thulawa.runtime.global_tables import GlobalTables
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.shuffled import ShuffledRecords, split_by_sender
from thulawa.runtime.task import Task
from thulawa.spark.event_loop import run_async
from thulawa.spark.micro_batch.changelog_output import BEFORE, POSITIONS, STAMP, TaskChangelogs
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import (
    AT_END,
    BEHIND,
    CLOCK,
    SINK,
    Packed,
    block_of,
    opened_records,
)
from thulawa.spark.task_context import current_task
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores, StateBackend
from thulawa.state.store_changelog import POSITION, Position, StoreChangelog

_codec = ColumnCodec()


class StageTask:
    """One task of a stage, with its stores and its copies of global tables."""

    def __init__(self, program: Program, part: StagedSubTopology, number: int) -> None:
        self._program = program
        self._part = part
        self._number = number
        self._tables = program.plan.global_tables(part.group)
        specs = program.plan.topology.stores
        names = dict.fromkeys((*part.group.stores, *(table.stores[0] for table in self._tables)))
        self._stores = PagedStores({name: specs[name] for name in names})
        self._output = TaskOutput(program, part, number)

    def close(self) -> None:
        """Evict the task; its state is in the stores."""

    def take_lanes(self) -> dict[str, LaneSums]:
        """Return the lane statistics of async nodes since the last call."""
        return {}

    def take_counts(self) -> RecordCounts:
        """Return the drop counts since the last call."""
        return Counter()

    def next_wall_clock_time(self) -> int | None:
        """Return when the task needs to run even without records; None: never."""
        return None

    def _global_tables(self) -> GlobalTables:
        topology, options = self._program.plan.topology, self._program.options
        send, backing = self._output.send, self._stores.backing
        return GlobalTables(topology, options, send, backing, self._tables)


def _update(tables: GlobalTables, row: Packed) -> None:
    for offset, time, key, value, _ in block_of(row).records():
        tables.update(row.topic, offset, key, value, time)


class HostedTask(StageTask):
    """A task that processes records."""

    def __init__(self, program: Program, part: StagedSubTopology, number: int) -> None:
        super().__init__(program, part, number)
        self._changelogs = TaskChangelogs(program, part)
        self._task: Task | None = None
        self._globals: GlobalTables | None = None

    def run(
        self, rows: Iterable[Packed], now: int, state: StateBackend
    ) -> Generator[Iterable[Packed], None, None]:
        """Process the rows of a micro-batch; yield the outputs, then write the stores.

        In this order Spark moves the outputs while the stores are written. Nothing remains of a
        micro-batch that fails or is abandoned.
        """
        try:
            with gc_disabled():
                yield from self._run(rows, now, state)
        except BaseException:
            self.close()
            raise

    def _run(
        self, rows: Iterable[Packed], now: int, state: StateBackend
    ) -> Iterator[Iterable[Packed]]:
        same = self._stores.open(state)
        if self._task is not None and not same:
            self.close()
            self._stores.forget()  # what a processor writes in close() belongs to no micro-batch
        if self._task is None:
            self._task = self._create(now)
        task = self._task
        task.context.wall_clock_time = now
        shuffled = ShuffledRecords()
        for row in sorted(rows, key=attrgetter("place")):
            self._add(task, shuffled, row)
        for topic, partition in shuffled.topic_partitions():
            task.add(topic, partition, shuffled.take(topic, partition))
        task.run()
        task.advance_wall_clock(now)
        snapshot = self._changelogs.write(self._stores, task.snapshot(), now, self._output)
        yield self._output.take()
        self._stores.flush(state, snapshot)

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

    def _add(self, task: Task, shuffled: ShuffledRecords, row: Packed) -> None:
        plan = self._program.plan
        if row.data in (BEHIND, AT_END):
            task.set_behind(row.topic, row.part, behind=row.data == BEHIND)
        elif (repartition := plan.repartitions.get(row.topic)) is not None:
            codec = ColumnCodec(repartition.value_serde)
            if repartition.is_topic:
                senders = split_by_sender(opened_records(block_of(row), codec))
                for sender, records in senders.items():
                    shuffled.add(row.topic, row.part, sender, records)
            else:
                place = row.place.rpartition("/")[0]  # without the row number at its end
                shuffled.add(row.topic, row.part, place, codec.decode(row.data))
        elif row.topic in plan.global_topics:
            assert self._globals is not None
            _update(self._globals, row)
        elif row.topic != CLOCK:
            task.add_block(row.topic, row.part, block_of(row))

    def _create(self, now: int) -> Task:
        self._output.clear()  # left by a failed attempt
        self._globals = self._global_tables()
        task = Task(
            self._part.group,
            self._program.plan.topology,
            self._output,
            number=self._number,
            partitions=self._part.tasks[self._number],
            options=self._program.options,
            backing=self._stores.backing,
            global_stores=self._globals.stores,
            wall_clock_time=now,
            run_async=run_async,
            snapshot=self._stores.snapshot or None,
        )
        self._output.attach(task.context)
        return task


class RestoreReport(msgspec.Struct, frozen=True):
    """The records of a changelog that a task has read in one micro-batch.

    ``found`` is the recomputed position of the store, if the micro-batch ends with a position
    record; ``wanted`` is the position that this record states.
    """

    store: str
    task: int
    records: int
    batch: int = 0
    found: Position | None = None
    wanted: Position | None = None


class RestoringTask(StageTask):
    """A task that restores its stores from changelogs and processes nothing meanwhile."""

    def __init__(self, program: Program, part: StagedSubTopology, number: int) -> None:
        super().__init__(program, part, number)
        assert program.recovery is not None
        self._stamps = {stamp.encode() for stamp in program.recovery.stamps}
        specs = program.plan.topology.stores
        self._logs = {name: StoreChangelog(specs[name]) for name in part.group.stores}

    def run(
        self,
        rows: Iterable[Packed],
        now: int,  # noqa: ARG002 as of a task that processes records
        state: StateBackend,
    ) -> Iterator[list[Packed]]:
        """Apply the changelog records of a micro-batch; yield a report for each changelog."""
        self._stores.open(state)
        snapshot: dict[str, Any] = dict(self._stores.snapshot or {})
        tables = self._global_tables()
        read: dict[str, list[RestoreReport]] = {}
        for row in sorted(rows, key=attrgetter("place")):
            if row.topic in self._program.plan.global_topics:
                _update(tables, row)
            else:
                _, store = self._program.restored[row.topic]
                read.setdefault(store, []).append(self._apply(store, row, snapshot))
        yield [self._row(reports) for reports in read.values()]
        self._stores.flush(state, snapshot)

    def _apply(self, store: str, row: Packed, snapshot: dict[str, Any]) -> RestoreReport:
        entries, log = self._stores.backing(store), self._logs[store]
        count, ends = 0, False
        for _, _, key, value, headers in block_of(row).records():
            count += 1
            effective = self._effective(value, headers)
            ends = key == POSITION
            if ends:
                _set_position(snapshot, store, effective)
                continue
            name, entry = log.read(key, effective)
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        current = current_task()
        batch = 0 if current is None or current.batch is None else current.batch
        if not ends:
            return RestoreReport(store, self._number, count, batch)
        stated = snapshot.get(POSITIONS, {}).get(store)
        wanted = Position() if stated is None else Position.decode(stated).bare()
        return RestoreReport(store, self._number, count, batch, log.position(entries), wanted)

    def _effective(self, value: bytes | None, headers: Headers) -> bytes | None:
        """Return the value that counts: for a micro-batch that is undone, the one before it."""
        if self._stamps and headers:
            named = dict(headers)
            if named.get(STAMP) in self._stamps:
                return named.get(BEFORE)
        return value

    def _row(self, reports: list[RestoreReport]) -> Packed:
        last = reports[-1]
        total = sum(one.records for one in reports)
        data = msgspec.json.encode(msgspec.structs.replace(last, records=total))
        return self._program.row(SINK, self._number, last.store, 0, "", data)


def _set_position(snapshot: dict[str, Any], store: str, position: bytes | None) -> None:
    """Set the position of a store and the task snapshot at that position."""
    positions = dict(snapshot.get(POSITIONS, {}))
    if position is not None:
        positions[store] = position
        (known,) = _codec.decode(Position.decode(position).known)
        snapshot.update({**known, POSITIONS: positions})
    elif positions.pop(store, None) and positions:
        snapshot[POSITIONS] = positions
    else:
        snapshot.clear()  # the task had never run


_tasks: dict[tuple[str, int, int], HostedTask | RestoringTask] = {}


def find_task(program: Program, part: StagedSubTopology, number: int) -> HostedTask | RestoringTask:
    """Return this worker's task of a number; create it if there is none.

    A worker serves one application at a time (`session.worker_pools`), so tasks of another run are
    evicted: that run has ended.
    """
    name = (program.run, part.group.id, number)
    for old in [one for one in _tasks if one[0] != program.run]:
        _tasks.pop(old).close()
    if name not in _tasks:
        kind = HostedTask if program.recovery is None else RestoringTask
        _tasks[name] = kind(program, part, number)
    return _tasks[name]
