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
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import ShippedProgram, encode_counts
from thulawa.spark.micro_batch.wire import (
    AT_END,
    BEHIND,
    CLOCK,
    COUNTS,
    Packed,
    as_block,
    bounded,
    opened_records,
    packed_batch,
)
from thulawa.state.codec import ColumnCodec

_BUNDLE_BYTES = 2**23  # approximate size of an Arrow batch


def run_first_stage(program: ShippedProgram, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Yield packed rows for the chunks of the source, or for rows that hold chunks."""
    freeze_gc()
    stage = _FirstStage(program.open())
    try:
        yield from map(packed_batch, bounded(stage.rows(batches), _BUNDLE_BYTES))
    except BaseException:
        for task, _ in stage.tasks.values():
            task.abandon()
        raise
    for task, _ in stage.tasks.values():
        task.close()
    for task, _ in stage.tasks.values():
        program.report_lanes(task.take_lanes())
    program.count(stage.take_counts())


class _FirstStage:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._plan = program.plan
        repartitions = program.plan.repartitions.items()
        self._names = {
            program.broker_name(name): name for name, one in repartitions if one.is_topic
        }
        self._read = ReadPositions(program)
        self.tasks: dict[TopicPartition, tuple[Task, TaskOutput]] = {}

    def rows(self, batches: Iterator[Any]) -> Iterator[Packed]:
        for chunk in chunks_of(batches):
            with gc_disabled():
                yield from self._behind(chunk) if isinstance(chunk, Behind) else self._packed(chunk)
        yield from self._read.rows()
        # without a next stage the drop counts stay here
        if self._plan.stages and (counts := self.take_counts()):
            yield self._program.row(SOURCE_STAGE + 1, 0, COUNTS, 0, "", encode_counts(counts))

    def _packed(self, chunk: Chunk) -> Iterator[Packed]:
        program, plan, partition = self._program, self._plan, chunk.partition
        if self._read.is_needed:
            self._read.add(TopicPartition(chunk.topic, partition), chunk.first, chunk.span)
        name = self._names.get(chunk.topic, chunk.topic)
        place = f"{name}/{partition:06}/{chunk.first:020}"
        if name in program.restored:  # a changelog: each partition is that of a task
            group, _ = program.restored[name]
            yield program.row(plan.parts[group].stage, partition, name, group, place, chunk.data)
        elif name == program.clock_topic:
            timed = [part for part in plan.parts.values() if has_timers(part.group.nodes)]
            yield from self._to_all_tasks(timed, CLOCK, "", b"")
        elif name in plan.global_topics:
            joined = [
                part
                for part in plan.parts.values()
                if name in {table.topic for table in plan.global_tables(part.group)}
            ]
            # "!" sorts first: tables are updated before joins read them
            yield from self._to_all_tasks(joined, name, f"!{place}", chunk.data)
        elif name != program.offsets_topic:
            part = plan.parts[plan.readers[name]]
            if part.stage == SOURCE_STAGE:
                yield from self._run(part, TopicPartition(name, partition), chunk)
            else:
                _check_known_partition(part, name, partition)
                task = part.task_of(name, partition)
                yield program.row(part.stage, task, name, partition, place, chunk.data)

    def _to_all_tasks(
        self, parts: list[StagedSubTopology], topic: str, place: str, data: bytes
    ) -> Iterator[Packed]:
        for part in parts:
            for task in range(len(part.tasks)):
                yield self._program.row(part.stage, task, topic, part.group.id, place, data)

    def _behind(self, of: Behind) -> Iterator[Packed]:
        """Yield the row that tells a task whether one of its partitions has unread records."""
        if self._read.is_needed:
            self._read.add_unread(of)
        name = self._names.get(of.topic, of.topic)
        if name not in self._plan.readers:
            return
        part = self._plan.parts[self._plan.readers[name]]
        if part.stage != SOURCE_STAGE:
            task = part.task_of(name, of.partition)
            data = BEHIND if of.behind else AT_END
            yield self._program.row(part.stage, task, name, of.partition, "", data)

    def _run(
        self, part: StagedSubTopology, topic: TopicPartition, chunk: Chunk
    ) -> Iterator[Packed]:
        if topic not in self.tasks:
            self.tasks[topic] = self._create_task(part, topic)
        task, output = self.tasks[topic]
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

    def _create_task(
        self, part: StagedSubTopology, topic: TopicPartition
    ) -> tuple[Task, TaskOutput]:
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

    def take_counts(self) -> RecordCounts:
        counts: RecordCounts = Counter()
        for task, _ in self.tasks.values():
            counts.update(task.take_counts())
        return counts


def _check_known_partition(part: StagedSubTopology, topic: str, partition: int) -> None:
    """Raise `StateError` for a new partition of a stateful task: its keys have state elsewhere."""
    if part.group.stores and not any(partition in task.get(topic, ()) for task in part.tasks):
        raise StateError(
            f"partition {partition} of {topic!r} is new: keys that are sent there now have their "
            f"state in the store {part.group.stores[0]!r} of another task. Start the application "
            "with allow_state_loss=True and such keys begin with none; to keep their state, read "
            "the topic with a new application_id"
        )
