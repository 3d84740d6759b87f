"""One task of a continuous host: its partitions, its stores, and its progress.

Everything that a task has done is committed in one transaction: outputs, changes of stores, and a
*progress record*, which has the positions of its partitions, the offsets of records below them
that are still in flight, and the snapshot of the task. A new attempt restores the stores from the
changelogs and continues from there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thulawa.brokers.port import PolledRecords, StreamProducer
from thulawa.core.types import Offsets, ProducerRecord, TopicPartition
from thulawa.runtime.blocks import Block
from thulawa.runtime.levels import may_punctuate
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.task import Task
from thulawa.spark.continuous.continuous_program import ContinuousProgram, TaskId
from thulawa.spark.continuous.local_state import LocalState
from thulawa.spark.continuous.record_collector import RecordCollector
from thulawa.state.codec import ColumnCodec
from thulawa.state.specs import Store
from thulawa.topology.nodes import AsyncCall, Node, Source, Stateless

_plain = ColumnCodec()
_BLOCK_RECORDS = 500  # most records between two looks at the clock
_TRANSIENT = ("held", "behind", "idle_since")  # of a snapshot: buffered records are read again


@dataclass(slots=True)
class TaskProgress:
    """What a task has processed.

    ``positions`` are the next offsets to read; of the records below them, those in ``unfinished``
    have to be processed again.
    """

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    unfinished: dict[TopicPartition, list[int]] = field(default_factory=dict)
    snapshot: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        """Return the progress record."""
        return _plain.encode([{
            "positions": [[*place, at] for place, at in self.positions.items()],
            "unfinished": [[*place, *all_] for place, all_ in self.unfinished.items() if all_],
            "snapshot": self.snapshot,
        }])  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> "TaskProgress":
        """Return the progress of a record."""
        (found,) = _plain.decode(data)
        return cls(
            {TopicPartition(topic, number): at for topic, number, at in found["positions"]},
            {TopicPartition(topic, number): all_ for topic, number, *all_ in found["unfinished"]},
            found["snapshot"],
        )

    def first_offset(self, partition: TopicPartition) -> int | None:
        """Return where to read a partition from; None: it has never been read."""
        unfinished = self.unfinished.get(partition)
        return unfinished[0] if unfinished else self.positions.get(partition)


class TaskCommit(NamedTuple):
    """The offsets to commit for a task, and its progress record."""

    offsets: Offsets
    progress: ProducerRecord


class StreamTask:
    """A task with its stores, as a host runs it."""

    def __init__(
        self,
        program: ContinuousProgram,
        task_id: TaskId,
        collector: RecordCollector,
        global_stores: Mapping[str, Store],
        *,
        progress: TaskProgress,
        state: LocalState,
        now: int,
    ) -> None:
        self.id = task_id
        part = program.plan.parts[task_id.group]
        self._program = program
        self.state = state
        self._progress = progress
        self._restored = TaskProgress(dict(progress.positions), dict(progress.unfinished))
        self._codecs = {
            topic: ColumnCodec(one.value_serde) for topic, one in program.plan.repartitions.items()
        }
        self._topics = {  # by their names at the broker
            program.topic_name(topic): topic for topic in part.tasks[task_id.number]
        }
        self.partitions = {
            TopicPartition(program.topic_name(topic), number)
            for topic, numbers in part.tasks[task_id.number].items()
            for number in numbers
        }
        self._read: dict[TopicPartition, int] = {}
        self.settles = not may_commit_in_flight(part)
        self._changed = False
        self._collector = collector
        self._global_stores = global_stores
        self._now = now
        self.task: Task

    def start_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the offsets from which the partitions are read.

        None of them counts as read to its end before the broker has said so.
        """
        self._read = {place: positions[place] for place in self.partitions}
        for topic, partition in self.partitions:
            self.task.set_behind(self._topics[topic], partition, behind=True)

    def open(self) -> None:
        """Open the stores, whose entries have been restored."""
        number = self.id.number
        part = self._program.plan.parts[self.id.group]
        self.task = Task(
            part.group,
            self._program.plan.topology,
            self._collector,
            number=number,
            partitions=part.tasks[number],
            options=self._program.options,
            backing=self.state.entries.__getitem__,
            global_stores=self._global_stores,
            wall_clock_time=self._now,
            continuous=True,
            snapshot=self._progress.snapshot,
        )
        self._collector.attach(self.task.context)

    def flush(self) -> None:
        """Flush the caches, and wake async nodes for what comes out of them."""
        self.task.commit()
        self._wake_async_nodes()

    @property
    def in_flight(self) -> int:
        """The number of deferred calls."""
        assert self.task.context.in_flight is not None
        return self.task.context.in_flight.count

    def add(self, polled: PolledRecords) -> None:
        """Add polled records; skip those that were finished before a restart."""
        place = polled.partition
        topic = self._topics[place.topic]
        if polled.at_end:
            self.task.set_behind(topic, place.partition, behind=False)
        elif polled.offsets:
            self.task.set_behind(topic, place.partition, behind=True)
        block = Block(*polled[1:6])
        block = self._not_finished(place, block)
        if block.offsets:
            codec = self._codecs.get(topic)
            if codec is not None:
                block = block._replace(
                    keys=[codec.decode(key)[0] for key in block.keys],
                    values=[codec.decode(value)[0] for value in block.values],
                )
            for start in range(0, len(block.offsets), _BLOCK_RECORDS):
                self.task.add_block(topic, place.partition, block.cut(start, _BLOCK_RECORDS))
        if polled.next_offset > self._read[place]:
            self._read[place] = polled.next_offset
            self._changed = True

    def _not_finished(self, place: TopicPartition, block: Block) -> Block:
        position = self._restored.positions.get(place)
        if position is None or not block.offsets or block.offsets[0] >= position:
            return block
        unfinished = set(self._restored.unfinished.get(place, ()))
        return block.select([at >= position or at in unfinished for at in block.offsets])

    def buffered(self) -> int:
        """Return the number of records that wait to be processed, or whose calls are in flight."""
        return self.in_flight + sum(
            self.task.buffered(self._topics[place.topic], place.partition)
            for place in self.partitions
        )

    def full_partitions(self, limit: int) -> list[TopicPartition]:
        """Return the partitions that have more buffered records than a limit.

        With more calls in flight than that, these are all of them.
        """
        if self.in_flight > limit:
            return list(self.partitions)
        return [
            place
            for place in self.partitions
            if self.task.buffered(self._topics[place.topic], place.partition) > limit
        ]

    def close(self) -> None:
        """Close the processors."""
        if hasattr(self, "task"):
            self.task.abandon()

    def process(self, now: int, expired: Callable[[], bool]) -> bool:
        """Process the buffered records and what is due by the clock; return whether any were.

        Stop soon after ``expired`` returns true.
        """
        task = self.task
        before = self._first_unprocessed()
        task.context.wall_clock_time = now
        task.process(expired)
        due = task.next_wall_clock_time
        is_due = due is not None and due <= now
        if is_due:
            task.advance_wall_clock(now)
        self.pass_results()
        processed = is_due or self._first_unprocessed() != before
        self._changed = self._changed or processed
        return processed

    def pass_results(self) -> None:
        """Process the results of calls that have arrived, and wake async nodes that they feed."""
        self.task.run_ready()
        self._wake_async_nodes()

    def _wake_async_nodes(self) -> None:
        for node in self.task.async_nodes:
            node.wake()

    def _first_unprocessed(self) -> list[int | None]:
        topics = self._topics
        return [
            self.task.first_buffered(topics[place.topic], place.partition)
            for place in self.partitions
        ]

    def commit(self, producer: StreamProducer, now: int) -> TaskCommit | None:
        """Send the changes of stores; return offsets and progress, None if nothing has changed."""
        self.flush()
        unfinished = self._unfinished()
        changed = self._changed or unfinished != self._progress.unfinished
        for store, entries in self.state.entries.items():
            topic = self.state.changelogs[store]
            for key, value in entries.take_changes():
                producer.send(topic, self.id.number, _plain.encode_one(key), value, now)
                changed = True
        if not changed:
            return None
        self._changed = False
        snapshot = {
            name: value for name, value in self.task.snapshot().items() if name not in _TRANSIENT
        }
        self._progress = TaskProgress(self._positions(), unfinished, snapshot)
        offsets: Offsets = {}
        for place in self._progress.positions:
            first = self._progress.first_offset(place)
            assert first is not None
            offsets.setdefault(place.topic, {})[place.partition] = first
        partition = self._program.progress_partition(self.id)
        record = ProducerRecord(b"progress", self._progress.encode(), (), now, partition)
        return TaskCommit(offsets, record)

    def _unprocessed(self, place: TopicPartition) -> int:
        """Return the offset of the first record of a partition that is not processed."""
        first = self.task.first_buffered(self._topics[place.topic], place.partition)
        return self._read[place] if first is None else first

    def _positions(self) -> dict[TopicPartition, int]:
        before = self._restored.positions
        return {place: max(self._unprocessed(place), before.get(place, 0)) for place in self._read}

    def _unfinished(self) -> dict[TopicPartition, list[int]]:
        in_flight = self.task.context.in_flight
        assert in_flight is not None
        found = {}
        for place in self._read:
            inner = TopicPartition(self._topics[place.topic], place.partition)
            first = self._unprocessed(place)
            waiting = [at for at in self._restored.unfinished.get(place, ()) if at >= first]
            if offsets := [*in_flight.unfinished(inner), *waiting]:
                found[place] = offsets
        return found


def may_commit_in_flight(part: StagedSubTopology) -> bool:
    """Return whether a record that is in flight can be processed again without a trace.

    It can if it has had no effect yet: between the sources and the last async node there are only
    nodes without state that have one child and forward at most one record.
    """
    behind: set[str] = set()  # async nodes and what is behind them
    nodes = {node.name: node for node in part.group.nodes}
    children: dict[str, list[Node]] = {name: [] for name in nodes}
    for node in part.group.nodes:
        for parent in node.parents:
            if parent in children:
                children[parent].append(node)
    leads_to_async = {name for name, node in nodes.items() if isinstance(node, AsyncCall)}
    for node in reversed(part.group.nodes):
        if any(child.name in leads_to_async for child in children[node.name]):
            leads_to_async.add(node.name)
    if not leads_to_async:
        return True
    if any(may_punctuate(node) for node in part.group.nodes):
        # an async processor may have changed its stores; what a processor behind a call has seen of
        # stream time is not known after a restart
        return False
    for name in leads_to_async:
        node = nodes[name]
        forwards_one = (
            isinstance(node, Source)
            or (
                isinstance(node, Stateless)
                and node.operation not in ("flat_map", "flat_map_values")
            )
            or (isinstance(node, AsyncCall) and node.operation in ("map_values", "map", "batch"))
        )
        is_last = isinstance(node, AsyncCall) and not any(
            child.name in leads_to_async for child in children[name]
        )
        if not is_last and (not forwards_one or len(children[name]) != 1):
            return False
    # a source that leads to no async node updates stores at once: these are another level's
    return all(
        node.name in leads_to_async or _is_behind(node, nodes, behind) for node in part.group.nodes
    )


def _is_behind(node: Node, nodes: Mapping[str, Node], behind: set[str]) -> bool:
    """Return whether every record of a node has passed an async node."""
    parents = [nodes[name] for name in node.parents if name in nodes]
    found = bool(parents) and all(
        isinstance(parent, AsyncCall) or parent.name in behind for parent in parents
    )
    if found:
        behind.add(node.name)
    return found
