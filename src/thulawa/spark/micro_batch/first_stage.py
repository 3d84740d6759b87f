"""The first stage: runs stateless sub-topologies, and packs other records for their tasks.

It runs inside the source, one Spark partition per topic partition, without a shuffle.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from thulawa.core.gc_freeze import freeze_gc, gc_disabled
from thulawa.core.types import TopicPartition
from thulawa.engine.lane_sums import LaneSums
from thulawa.errors import StateError
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.planning import SOURCE_STAGE, StagedSubTopology, has_timers
from thulawa.runtime.shuffled import merge_by_time, split_by_sender
from thulawa.runtime.task import Task
from thulawa.spark.connectors.chunks import Behind, Chunk
from thulawa.spark.connectors.log_packed import chunks_of
from thulawa.spark.event_loop import run_async
from thulawa.spark.micro_batch.changelog_output import ReadPositions
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.dropped_records import encode_counts
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import ShippedProgram
from thulawa.spark.micro_batch.wire import (
    AT_END,
    BEHIND,
    CLOCK,
    COUNTS,
    Packed,
    as_block,
    opened_records,
    packed_batch,
)
from thulawa.state.codec import ColumnCodec

__all__ = ["run_first_stage"]

_BUNDLE_BYTES = 2**23  # approximate size of an Arrow batch


def run_first_stage(program: ShippedProgram, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Yield packed rows for the chunks of the source, or for rows that hold chunks."""
    freeze_gc()
    stage = _FirstStage(program.open())
    try:
        yield from _packed(stage, batches)
    except BaseException:
        stage.abandon()
        raise
    stage.close()
    for lanes in stage.take_lanes():
        program.report_lanes(lanes)
    program.count(stage.take_counts())


def _packed(stage: "_FirstStage", batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the stage in Arrow batches of bounded size."""
    packed: list[Packed] = []
    held = 0
    for row in _rows(stage, batches):
        packed.append(row)
        held += len(row.data)
        if held >= _BUNDLE_BYTES:
            yield packed_batch(packed)
            packed, held = [], 0
    if packed:
        yield packed_batch(packed)


def _rows(stage: "_FirstStage", batches: Iterator[Any]) -> Iterator[Packed]:
    for chunk in chunks_of(batches):
        with gc_disabled():
            yield from stage.behind(chunk) if isinstance(chunk, Behind) else stage.packed(chunk)
    yield from stage.progress()
    yield from stage.counts()


class _FirstStage:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._plan = program.plan
        self._names = {
            f"{program.application_id}-{name}": name
            for name, one in program.plan.repartitions.items()
            if one.is_topic
        }
        self._tasks: dict[TopicPartition, tuple[Task, TaskOutput]] = {}
        self._read = ReadPositions(program)

    def packed(self, chunk: Chunk) -> Iterator[Packed]:
        plan, topic = self._plan, TopicPartition(chunk.topic, chunk.partition)
        if self._read.is_needed:
            self._read.add(topic, chunk.first, chunk.span)
        if topic.topic in self._program.restored:
            yield self._changes(chunk)
            return
        if topic.topic == self._program.offsets_topic:
            return
        if topic.topic == self._program.clock_topic:
            yield from self._wake()
            return
        name = self._names.get(topic.topic, topic.topic)
        place = f"{name}/{topic.partition:06}/{chunk.first:020}"
        if name in plan.global_topics:
            data = chunk.data
            for part in plan.parts.values():
                if name in {table.topic for table in plan.global_tables(part.group)}:
                    for task in range(len(part.tasks)):
                        slot = self._program.slot_of(task)
                        # "!" sorts first: tables are updated before joins read them
                        yield Packed(slot, part.stage, task, name, part.group.id, f"!{place}", data)
            return
        part = plan.parts[plan.readers[name]]
        if part.stage == SOURCE_STAGE:
            yield from self._run(part, TopicPartition(name, topic.partition), chunk)
            return
        _check_known_partition(part, name, topic.partition)
        task = part.task_of(name, topic.partition)
        slot = self._program.slot_of(task)
        yield Packed(slot, part.stage, task, name, topic.partition, place, chunk.data)

    def behind(self, of: Behind) -> Iterator[Packed]:
        """Yield the row that tells a task whether one of its partitions has unread records."""
        if self._read.is_needed:
            self._read.add_unread(of)
        name = self._names.get(of.topic, of.topic)
        if name not in self._plan.readers:
            return
        part = self._plan.parts[self._plan.readers[name]]
        if part.stage != SOURCE_STAGE:
            task = part.task_of(name, of.partition)
            slot = self._program.slot_of(task)
            data = BEHIND if of.behind else AT_END
            yield Packed(slot, part.stage, task, name, of.partition, "", data)

    def progress(self) -> Iterator[Packed]:
        """Return the rows with the read positions, one for each writing task."""
        return self._read.rows()

    def _changes(self, chunk: Chunk) -> Packed:
        """Return the row with changelog records, for the task whose store they restore."""
        topic, task = chunk.topic, chunk.partition
        group, _ = self._program.restored[topic]
        stage, slot = self._plan.parts[group].stage, self._program.slot_of(task)
        place = f"{topic}/{task:06}/{chunk.first:020}"
        return Packed(slot, stage, task, topic, group, place, chunk.data)

    def _wake(self) -> Iterator[Packed]:
        """Yield a row for every task that may have timers, so that it runs without records."""
        for part in self._plan.parts.values():
            if has_timers(part.group.nodes):
                for task in range(len(part.tasks)):
                    slot = self._program.slot_of(task)
                    yield Packed(slot, part.stage, task, CLOCK, part.group.id, "", b"")

    def _run(
        self, part: StagedSubTopology, topic: TopicPartition, chunk: Chunk
    ) -> Iterator[Packed]:
        if topic not in self._tasks:
            self._tasks[topic] = self._made(part, topic)
        task, output = self._tasks[topic]
        # the source has no batch time; the clock is only used to detect far-future timestamps
        task.context.wall_clock_time = self._program.now(int(time.time() * 1_000))
        block = as_block(chunk.columns)
        repartition = self._plan.repartitions.get(topic.topic)
        if repartition is not None:
            records = opened_records(block, ColumnCodec(repartition.value_serde))
            task.add(*topic, merge_by_time([*split_by_sender(records).values()]))
        else:
            task.add_block(*topic, block)
        task.run()
        return output.take()

    def _made(self, part: StagedSubTopology, topic: TopicPartition) -> tuple[Task, TaskOutput]:
        program = self._program
        number = part.task_of(*topic)
        output = TaskOutput(program, part, number, topic)
        task = Task(
            part.group,
            program.plan.topology,
            output,
            number=number,
            partitions={topic.topic: (topic.partition,)},
            options=program.options,
            run_async=run_async,
        )
        output.attach(task.context)
        return task, output

    def take_lanes(self) -> Iterator[dict[str, LaneSums]]:
        return (task.take_lanes() for task, _ in self._tasks.values())

    def take_counts(self) -> RecordCounts:
        counts: RecordCounts = Counter()
        for task, _ in self._tasks.values():
            counts.update(task.take_counts())
        return counts

    def counts(self) -> Iterator[Packed]:
        """Yield the drop counts as a row for the next stage; without one they stay here."""
        if self._plan.stages and (counts := self.take_counts()):
            yield Packed(
                self._program.slots[0], SOURCE_STAGE + 1, 0, COUNTS, 0, "", encode_counts(counts)
            )

    def close(self) -> None:
        for task, _ in self._tasks.values():
            task.close()

    def abandon(self) -> None:
        for task, _ in self._tasks.values():
            task.abandon()


def _check_known_partition(part: StagedSubTopology, topic: str, partition: int) -> None:
    """Raise `StateError` for a new partition of a stateful task: its keys have state elsewhere."""
    if part.group.stores and not any(partition in task.get(topic, ()) for task in part.tasks):
        raise StateError(
            f"partition {partition} of {topic!r} is new: keys that are sent there now have their "
            f"state in the store {part.group.stores[0]!r} of another task. Start the application "
            "with allow_state_loss=True and such keys begin with none; to keep their state, read "
            "the topic with a new application_id"
        )
