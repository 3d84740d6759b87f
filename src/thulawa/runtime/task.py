"""The task: one partition group of a sub-topology, record by record.

A task processes the head with the lowest timestamp among its partitions; ties are broken by topic,
then partition. Stream time is the highest timestamp processed; it never goes back. The host adds
records, runs the task, advances its clock and commits it; nothing here reads a clock or blocks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count, islice
from typing import Any

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.records import LAST_TIMESTAMP
from thulawa.engine.lane_sums import LaneSums
from thulawa.errors import ConfigurationError
from thulawa.runtime.async_nodes import AsyncNode, RunAsync
from thulawa.runtime.blocks import Block, RawRecord
from thulawa.runtime.context import Collector, TaskContext
from thulawa.runtime.graph import Graph
from thulawa.runtime.in_flight import InFlight
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.partition_queues import RecordQueue
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.backing import Backing
from thulawa.state.specs import Store
from thulawa.topology.subtopologies import SubTopology
from thulawa.topology.topology import Topology

_log = logging.getLogger("thulawa.streams")
_SLICE = 64  # records between two looks at the clock


class TaskIdleTimer:
    """Decide whether a task waits for partitions without buffered records: max.task.idle.ms.

    A record must not be processed while another partition of the task has records at the broker
    that no batch has read yet: one of them may be earlier. Such a partition is *behind*, and the
    task waits for it without a limit, since the next batches read its records.

    ``limit`` bounds the wait for partitions that are read to their end; None: never wait.
    ``since`` is when such a wait began, None if all partitions have records. ``behind`` are the
    partitions with unread records at the broker.
    """

    __slots__ = ("_limit", "active", "behind", "since")

    def __init__(self, limit: Duration | None) -> None:
        self._limit = None if limit is None else milliseconds(limit)
        self.since: int | None = None
        self.behind: set[tuple[str, int]] = set()
        self.active = bool(self._limit)  # whether the task may have to wait at all

    def set_behind(self, partition: tuple[str, int], *, behind: bool) -> None:
        """Set whether a topic-partition has unread records at the broker."""
        if self._limit is not None:
            (self.behind.add if behind else self.behind.discard)(partition)
            self.active = bool(self._limit or self.behind)

    def must_wait(self, now: int, empty: list[tuple[str, int]]) -> bool:
        """Return whether the task must wait, if the partitions ``empty`` have no records."""
        if not self.behind.isdisjoint(empty):
            return True
        if not self._limit or not empty:
            self.since = None
            return False
        if self.since is None:
            self.since = now
        return now < self.since + self._limit

    @property
    def due(self) -> int | None:
        """The time at which a wait ends; None if there is none, or if the clock does not end it."""
        return None if self.since is None or not self._limit else self.since + self._limit


class Task:
    """Run one partition group of a sub-topology.

    ``number`` is the task's number in its sub-topology; ``partitions`` are those it reads, by topic
    (default: those of its number). ``collector`` receives the outputs; ``backing`` returns the
    backing of a store by name (default: a dict); ``global_stores`` are shared by all tasks.
    ``run_async`` runs a coroutine to completion and is required for async nodes, except if the task
    is ``continuous``: the host then runs `AsyncNode.serve` of each, and commits while calls are in
    flight, by ``context.in_flight``. With the ``snapshot`` of an earlier task and the backings of
    its stores, the task continues from there.
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
        continuous: bool = False,
        snapshot: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = f"{group.id}_{number}"
        self._options = options or TaskOptions()
        self.context = TaskContext(
            self.id,
            collector,
            topology,
            self._options.handlers,
            backing or (lambda _: {}),
            global_stores or {},
        )
        self.context.wall_clock_time = wall_clock_time
        self.context.in_flight = InFlight() if continuous else None
        self._graph = Graph(group, topology, self.context)
        self._levels = self._graph.levels
        self._first_level = self._levels.all[0]
        self._punctuations = self._first_level.punctuations
        self._commits_each_record = bool(self.context.flushes) and self._options.commit != "batch"
        self._run_async = run_async
        if self._graph.async_nodes and run_async is None and not continuous:
            raise ConfigurationError("a task with async nodes needs run_async")
        self._sources = {topic: source for source in group.sources for topic in source.topics}
        self._queues: dict[tuple[str, int], RecordQueue] = {}
        for topic in self._sources:
            for partition in (partitions or {}).get(topic, () if partitions else (number,)):
                self._queue_of(topic, partition)
        self._expected = frozenset(self._queues)
        single = len(self._queues) <= 1
        self._idle_timer = TaskIdleTimer(None if single else self._options.max_task_idle)
        if snapshot is not None:
            self._resume(snapshot)
        for level in self._levels.all:
            level.punctuations.resume({} if snapshot is None else snapshot["punctuations"])

    def add(self, topic: str, partition: int, records: Iterable[RawRecord]) -> None:
        """Add records of a partition, in offset order; a new partition joins the group."""
        self._queue_of(topic, partition).extend(records)

    def add_block(self, topic: str, partition: int, block: Block) -> None:
        """Add a block of records of a partition, in offset order."""
        self._queue_of(topic, partition).extend_block(block)

    def set_behind(self, topic: str, partition: int, *, behind: bool) -> None:
        """Set whether the broker has records of a partition that no batch has read yet."""
        self._idle_timer.set_behind((topic, partition), behind=behind)

    def _queue_of(self, topic: str, partition: int) -> RecordQueue:
        queue = self._queues.get((topic, partition))
        if queue is None:
            source = self._sources[topic]
            queue = RecordQueue(topic, partition, source, self._graph, self.context, self._options)
            self._queues[topic, partition] = queue
        return queue

    @property
    def next_wall_clock_time(self) -> int | None:
        """The wall-clock time at which the task is due next, or None."""
        due = self._levels.next_wall_clock_time
        if self._idle_timer.due is not None and self._has_records():
            due = min(due, self._idle_timer.due)
        return None if due > LAST_TIMESTAMP else due

    def run(self) -> None:
        """Process the buffered records, drain async nodes, and commit."""
        self.process()
        if self._graph.async_nodes:
            self.drain()
        self.commit()

    def process(self, expired: Callable[[], bool] | None = None) -> None:
        """Process the buffered records, until ``expired`` says so; async nodes collect them."""
        busy = [queue for queue in self._queues.values() if len(queue)]
        commits = self._commits_each_record
        if len(busy) == 1 and not self._idle_timer.active and not commits:
            self._run_single(busy[0], expired)
        else:
            for processed in count(1):
                queue = self._next_queue()
                if queue is None:
                    break
                record = queue.pop()
                assert record is not None
                self._run_each(queue, (record,))
                if commits:
                    self.commit()
                if expired is not None and processed % _SLICE == 0 and expired():
                    break

    @property
    def async_nodes(self) -> Sequence[AsyncNode]:
        """The async nodes, parents before children."""
        return self._graph.async_nodes

    def run_ready(self) -> None:
        """Process the results of async nodes that have arrived, in order where that matters."""
        self._levels.run_ready()

    def buffered(self, topic: str, partition: int) -> int:
        """Return the number of records of a partition that wait to be processed."""
        queue = self._queues.get((topic, partition))
        return 0 if queue is None else len(queue)

    def first_buffered(self, topic: str, partition: int) -> int | None:
        """Return the offset of the first record of a partition that waits; None if none does."""
        queue = self._queues.get((topic, partition))
        return None if queue is None else queue.first_offset

    def drain(self) -> None:
        """Process the records that async nodes have collected."""
        if self._run_async is not None and self._graph.async_nodes:
            self._run_async(self._levels.drain())

    def advance_wall_clock(self, now: int) -> None:
        """Advance the wall clock, and run what is due."""
        self.context.wall_clock_time = now
        if self._idle_timer.due is not None and self._has_records():
            self.run()
        if now >= self._levels.next_wall_clock_time:
            for level in self._levels.all:
                self.context.topic = None
                level.punctuations.fire("wall_clock_time", now)
                self.drain()
            self.commit()

    def commit(self) -> None:
        """Flush the caches."""
        self.context.commit_requested = False
        if self.context.flushes:
            with self.context.attribute_errors_to(None):
                # nodes are built children first, so parents flush first: they fill the others
                for flush in reversed(self.context.flushes):
                    flush()
                    self.drain()

    def snapshot(self) -> dict[str, Any]:
        """Return the task's state besides its stores as plain data, to be persisted with them."""
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
            "idle_since": self._idle_timer.since,
            "behind": sorted(f"{topic}/{number}" for topic, number in self._idle_timer.behind),
        }

    def _resume(self, snapshot: Mapping[str, Any]) -> None:
        self.context.stream_time = snapshot["stream_time"]
        for name, (time, emitted) in snapshot["clocks"].items():
            clock = self.context.clock(name)
            clock.time, clock.emitted = time, emitted
        # also of partitions that joined later: their buffered records are nowhere else
        for queue, time in self._restored(snapshot["partition_times"]):
            queue.partition_time = time
        for queue, records in self._restored(snapshot.get("held", {})):
            queue.extend(records)
        self._idle_timer.since = snapshot.get("idle_since")
        for name in snapshot.get("behind", ()):
            topic, _, partition = name.rpartition("/")
            if (topic, int(partition)) in self._expected:  # else another task reads it now
                self.set_behind(topic, int(partition), behind=True)

    def _restored(self, values: Mapping[str, Any]) -> Iterator[tuple[RecordQueue, Any]]:
        """Yield a snapshot's values by partition, with the queues; skip topics no longer read."""
        for name, value in values.items():
            topic, _, partition = name.rpartition("/")
            if topic in self._sources:
                yield self._queue_of(topic, int(partition)), value

    def close(self) -> None:
        """Close the processors, and the resources of async nodes."""
        with ExitStack() as closing:
            closing.callback(self._graph.close)
            for node in reversed(self._graph.async_nodes):
                closing.callback(self._close_async_node, node)

    def _close_async_node(self, node: AsyncNode) -> None:
        if self._run_async is not None:
            self._run_async(node.close())

    def abandon(self) -> None:
        """Close the task after an error; log what this raises, so that it hides no error."""
        try:
            self.close()
        except Exception:  # noqa: BLE001 processors and resources are the user's
            _log.warning("closing task %s failed", self.id, exc_info=True)

    def take_lanes(self) -> dict[str, LaneSums]:
        """Return the lane statistics since the last call, by async node."""
        with_lanes = [one for one in self._graph.async_nodes if one.node.has_lanes]
        return {one.node.name: one.take_lanes() for one in with_lanes}

    def take_counts(self) -> RecordCounts:
        """Return the counts of dropped records since the last call."""
        counts, self.context.counts = self.context.counts, Counter()
        return counts

    def store(self, name: str) -> Any:
        """Return one of the task's stores."""
        return self.context.store(name)

    def _has_records(self) -> bool:
        return any(map(len, self._queues.values()))

    def _next_queue(self) -> RecordQueue | None:
        best: tuple[int, str, int] | None = None
        chosen = None
        empty = []
        for name, queue in self._queues.items():
            time = queue.head_time()
            if time is not None:
                order = (time, queue.topic, queue.partition)
                if best is None or order < best:
                    best, chosen = order, queue
            elif name in self._expected:  # another task may read one that joined later
                empty.append(name)
        if chosen is None or not self._idle_timer.active:
            return chosen
        return None if self._idle_timer.must_wait(self.context.wall_clock_time, empty) else chosen

    def _run_single(self, queue: RecordQueue, expired: Callable[[], bool] | None) -> None:
        """Process the records of the only partition that has any, in blocks where possible."""
        self.context.queue = queue
        while len(queue):
            block = queue.pop_block()
            if block is None:
                self._run_each(queue, queue if expired is None else islice(queue, _SLICE))
            elif not self._run_block(queue, block):
                self._run_each(queue, block.records())
            if expired is not None and expired():
                return

    def _run_block(self, queue: RecordQueue, block: Block) -> bool:
        """Process a block at once; return False if its nodes cannot, or a punctuation is due."""
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
        context.queue = queue
        context.topic, context.partition = queue.topic, queue.partition
        for context.offset, timestamp, key, value, headers in records:
            if timestamp > context.stream_time:
                context.stream_time = timestamp
            forward(key, value, timestamp, headers)
            if always or context.stream_time >= punctuations.next_stream_time:
                self._first_level.punctuate()
                context.topic = queue.topic
