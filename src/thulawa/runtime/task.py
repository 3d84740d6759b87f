"""The task: one partition group of a sub-topology, record by record.

Of the partitions' heads the one with the lowest timestamp goes first, ties by topic, then
partition. Stream time is the highest timestamp taken; it never goes back. Whoever hosts the
task feeds it, runs it, moves its clock, and commits it; nothing here reads a clock or waits.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from thulawa.core.errors import ConfigurationError, StreamError
from thulawa.core.records import LAST_TIMESTAMP, Headers
from thulawa.engine.lane_sums import LaneSums
from thulawa.runtime.async_nodes import AsyncNode, RunAsync
from thulawa.runtime.blocks import Block
from thulawa.runtime.context import Collector, TaskContext
from thulawa.runtime.graph import Graph
from thulawa.runtime.handlers import ErrorRecord, Fail, Handler, Resume
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.partition_queues import RawRecord, RecordQueue
from thulawa.runtime.task_idle import TaskIdleTimer
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.backing import Backing
from thulawa.state.specs import Store
from thulawa.topology.nodes import Node, Source
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

__all__ = ["Task"]

_log = logging.getLogger("thulawa.streams")


class Task:
    """Run one partition group of a sub-topology.

    ``number`` tells the tasks of a sub-topology apart; ``partitions`` are those it reads, by
    topic, and unless told otherwise those of its number. ``collector`` takes the outputs;
    ``backing`` gives the backing of a store by name (in memory unless told otherwise);
    ``global_stores`` are those every task shares. ``run_async`` runs a coroutine to its end; a
    task without async nodes needs none. With a ``snapshot`` of a task before it, and the backings
    of that one's stores, it goes on where that one was.
    """

    def __init__(  # noqa: PLR0913 the host's part is optional and named
        self,
        group: SubTopology,
        topology: Topology,
        collector: Collector,
        *,
        number: int = 0,
        partitions: Mapping[str, tuple[int, ...]] | None = None,
        options: TaskOptions | None = None,
        backing: Callable[[str], Backing] | None = None,
        global_stores: Mapping[str, Store] | None = None,
        wall_clock_time: int = 0,
        run_async: RunAsync | None = None,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = f"{group.id}_{number}"
        self._options = options or TaskOptions()
        self.context = TaskContext(
            self.id,
            collector,
            dict(topology.stores),
            backing or (lambda _: {}),
            dict(global_stores or {}),
        )
        self.context.wall_clock_time = wall_clock_time
        self.context.handle = self._processing_failed
        self.context.at_hand = self._raw_at_hand
        self._graph = Graph(group, topology, self.context)
        self._levels = self._graph.levels
        self._first_level = self._levels.all[0]
        self._punctuations = self._first_level.punctuations
        self._commits_each = bool(self.context.flushes) and self._options.commit != "batch"
        self._run_async = run_async
        if self._graph.stages and run_async is None:
            raise ConfigurationError("a task with async nodes needs run_async")
        self._sources = {topic: source for source in group.sources for topic in source.topics}
        self._queues = {
            (topic, partition): self._queue(topic, partition, source)
            for topic, source in self._sources.items()
            for partition in (partitions or {}).get(topic, () if partitions else (number,))
        }
        self._expected = frozenset(self._queues)
        self._taken_from: RecordQueue | None = None
        alone = len(self._queues) <= 1
        self._patience = TaskIdleTimer(None if alone else self._options.max_task_idle)
        if snapshot is not None:
            self._resume(snapshot)
        for level in self._levels.all:
            level.punctuations.resume({} if snapshot is None else snapshot["punctuations"])

    def add(self, topic: str, partition: int, records: Iterable[RawRecord]) -> None:
        """Take in records of one partition, in offset order; a new one joins the group."""
        self._queue_of(topic, partition).extend(records)

    def add_block(self, topic: str, partition: int, block: Block) -> None:
        """Take in records in columns."""
        self._queue_of(topic, partition).extend_block(block)

    def set_behind(self, topic: str, partition: int, *, behind: bool) -> None:
        """Note whether the broker has records of a partition that no batch has read yet."""
        self._patience.set_behind((topic, partition), behind=behind)

    def _queue_of(self, topic: str, partition: int) -> RecordQueue:
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queue(topic, partition, self._sources[topic])
            self._queues[topic, partition] = queue
        return queue

    @property
    def next_wall_clock_time(self) -> int | None:
        """When the clock has something for the task to do; None when it has not."""
        due = self._levels.next_wall_clock_time
        if self._patience.due is not None and self._has_records():
            due = min(due, self._patience.due)
        return None if due > LAST_TIMESTAMP else due

    def run(self) -> None:
        """Process all records there are."""
        busy = [queue for queue in self._queues.values() if len(queue)]
        if self._commits_each:
            while self._run_one():
                self.commit()
        elif len(busy) == 1 and not self._patience.active:
            self._run_alone(busy[0])
        else:
            while self._run_one():
                pass
        if self._graph.stages:
            self.settle()
        self.commit()

    def _run_one(self) -> bool:
        """Process the next record and what it brings about; tell whether there was one."""
        queue = self._next_queue()
        if queue is None:
            return False
        record = queue.pop()
        assert record is not None
        self._process(queue, record)
        return True

    def settle(self) -> None:
        """Finish what async nodes have taken in."""
        if self._run_async is not None and self._graph.stages:
            self._run_async(self._levels.settle())

    def advance_wall_clock(self, now: int) -> None:
        """Move the clock, and do what is due by it."""
        self.context.wall_clock_time = now
        if self._patience.due is not None and self._has_records():
            self.run()
        if now >= self._levels.next_wall_clock_time:
            for level in self._levels.all:
                self.context.topic = None
                level.punctuations.fire("wall_clock_time", now)
                self.settle()
            self.commit()

    def commit(self) -> None:
        """Send on what caches hold back."""
        self.context.commit_requested = False
        if self.context.flushes:
            with self.context.about(None):
                # nodes are made from the end: the last made first, for it may fill the others
                for flush in reversed(self.context.flushes):
                    flush()
                    self.settle()

    def snapshot(self) -> dict[str, Any]:
        """Return what the task knows besides its stores, as plain data to be kept with them."""
        return {
            "stream_time": self.context.stream_time,
            "clocks": {
                name: (clock.time, clock.emitted) for name, clock in self.context.clocks.items()
            },
            "partition_times": {
                f"{topic}/{partition}": queue.partition_time
                for (topic, partition), queue in self._queues.items()
            },
            "punctuations": self._levels.due(),
            "held": {
                f"{topic}/{partition}": queue.held()
                for (topic, partition), queue in self._queues.items()
                if len(queue)
            },
            "idle_since": self._patience.since,
            "behind": sorted(f"{topic}/{number}" for topic, number in self._patience.behind),
        }

    def _resume(self, snapshot: Mapping[str, Any]) -> None:
        self.context.stream_time = snapshot["stream_time"]
        for name, (time, emitted) in snapshot["clocks"].items():
            clock = self.context.clock(name)
            clock.time, clock.emitted = time, emitted
        # of partitions that joined later as well: what waits of them is nowhere else
        for queue, time in self._remembered(snapshot["partition_times"]):
            queue.partition_time = time
        for queue, records in self._remembered(snapshot.get("held", {})):
            queue.extend(records)
        self._patience.since = snapshot.get("idle_since")
        for place in snapshot.get("behind", ()):
            topic, _, partition = place.rpartition("/")
            if (topic, int(partition)) in self._expected:  # else it is another task's by now
                self.set_behind(topic, int(partition), behind=True)

    def _remembered(self, by_place: Mapping[str, Any]) -> Iterator[tuple[RecordQueue, Any]]:
        """Return what a snapshot has of partitions, with their queues; topics may have gone."""
        for place, known in by_place.items():
            topic, _, partition = place.rpartition("/")
            if topic in self._sources:
                yield self._queue_of(topic, int(partition)), known

    def close(self) -> None:
        """Close the processors, and the resources of async nodes."""
        with ExitStack() as closing:
            closing.callback(self._graph.close)
            for stage in reversed(self._graph.stages):
                closing.callback(self._close_stage, stage)

    def _close_stage(self, stage: AsyncNode) -> None:
        if self._run_async is not None:
            self._run_async(stage.close())

    def abandon(self) -> None:
        """Close what a task that is let go has opened; it must not hide why that is."""
        try:
            self.close()
        except Exception:  # noqa: BLE001 processors and resources are the user's
            _log.warning("task %s was not closed as it should be", self.id, exc_info=True)

    def take_lanes(self) -> dict[str, LaneSums]:
        """Return what lanes have come to since this was last asked, by async node."""
        stages = [stage for stage in self._graph.stages if stage.node.has_lanes]
        return {stage.node.name: stage.take_lanes() for stage in stages}

    def take_counts(self) -> RecordCounts:
        """Return the counts of records that nodes left out since this was last asked."""
        counts, self.context.counts = self.context.counts, Counter()
        return counts

    def store(self, name: str) -> Any:
        """Return one of the task's stores."""
        return self.context.store(name)

    def _queue(self, topic: str, partition: int, source: Source) -> RecordQueue:
        return RecordQueue(
            topic,
            partition,
            source,
            self._graph.entry(source),
            self._graph.block_entry(source),
            self.context,
            self._options,
            self._deserialization_failed,
        )

    def _has_records(self) -> bool:
        return any(map(len, self._queues.values()))

    def _next_queue(self) -> RecordQueue | None:
        best: tuple[int, str, int] | None = None
        chosen = None
        empty = []
        for name, queue in self._queues.items():
            time = queue.head_time()
            if time is not None:
                place = (time, queue.topic, queue.partition)
                if best is None or place < best:
                    best, chosen = place, queue
            elif name in self._expected:  # one that joined may be another task's by now
                empty.append(name)
        if chosen is None or not self._patience.active:
            return chosen
        return None if self._patience.holds(self.context.wall_clock_time, empty) else chosen

    def _run_alone(self, queue: RecordQueue) -> None:
        """Process the records of the only partition that has any: no choice, less work."""
        self._taken_from = queue
        while len(queue):
            block = queue.pop_block()
            if block is None:
                self._run_each(queue, queue)
            elif not self._run_block(queue, block):
                self._run_each(queue, block.records())

    def _run_block(self, queue: RecordQueue, block: Block) -> bool:
        """Process a block as one, where its nodes can and nothing is due before its end."""
        context, newest = self.context, max(block.timestamps)
        if queue.forward_block is None or newest >= self._punctuations.next_stream_time:
            return False
        context.topic, context.partition = queue.topic, queue.partition
        context.stream_time = max(context.stream_time, newest)
        queue.forward_block(block)
        return True

    def _run_each(self, queue: RecordQueue, records: Iterable[RawRecord]) -> None:
        context, punctuations = self.context, self._punctuations
        forward, always = queue.forward, self._levels.follows_time
        context.topic, context.partition = queue.topic, queue.partition
        for context.offset, timestamp, key, value, headers in records:
            if timestamp > context.stream_time:
                context.stream_time = timestamp
            forward(key, value, timestamp, headers)
            if always or context.stream_time >= punctuations.next_stream_time:
                self._first_level.punctuate()
                context.topic = queue.topic

    def _process(self, queue: RecordQueue, record: RawRecord) -> None:
        context = self.context
        self._taken_from = queue
        context.topic, context.partition = queue.topic, queue.partition
        context.offset, timestamp, key, value, headers = record
        if timestamp > context.stream_time:
            context.stream_time = timestamp
        queue.forward(key, value, timestamp, headers)
        self._first_level.punctuate()

    # --- errors

    def _raw_at_hand(self) -> RawRecord | None:
        return None if self._taken_from is None else self._taken_from.raw

    def _deserialization_failed(self, error: StreamError, record: ErrorRecord) -> None:
        self._answer(self._options.handlers.deserialization, error, record)

    def _processing_failed(
        self, error: StreamError, node: Node, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        context = self.context
        raw = context.raw()
        if raw is not None:
            _, timestamp, key, value, headers = raw
        record = ErrorRecord(
            node.name,
            context.topic,
            context.partition,
            context.offset,
            key,
            value,
            timestamp,
            headers,
        )
        self._answer(self._options.handlers.processing, error, record)

    def _answer(self, handler: Handler, error: StreamError, record: ErrorRecord) -> None:
        answer = handler(error, record)
        letters = answer.dead_letters if isinstance(answer, Fail | Resume) else ()
        for letter in letters:
            self.context.collector.send(
                None, letter.topic, letter.key, letter.value, letter.timestamp, letter.headers
            )
        if not isinstance(answer, Resume):
            raise error
        self.context.drop(record.node or "", "dead_letter" if letters else "skipped")
