"""TopologyTestDriver: a whole program in one process, synchronous, without Kafka or Spark.

Each input is processed to the end, through all sub-topologies, before the next one is taken.
The wall clock stands still until it is told to move. Async nodes run through the engine in
virtual time: an hour of back-off costs nothing, and races are decided by ``seed``.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.core.partitioning import partition_of
from thulawa.core.records import Headers
from thulawa.core.serdes import Serde
from thulawa.runtime.globals import GlobalTables
from thulawa.runtime.groups import PartitionGrouper, by_number, partition_groups
from thulawa.runtime.options import TaskOptions
from thulawa.runtime.output import Encoder, chosen_partition
from thulawa.runtime.queues import RawRecord
from thulawa.runtime.task import Task
from thulawa.state.keyvalue import KeyValueStore
from thulawa.state.sessions import SessionStore
from thulawa.state.specs import Store
from thulawa.state.versioned import VersionedStore
from thulawa.state.windows import WindowStore
from thulawa.testing.loop import VirtualTimeLoop
from thulawa.testing.topics import TestInputTopic, TestOutputTopic, Written
from thulawa.topology.nodes import Sink, Source
from thulawa.topology.topology import Topology

__all__ = ["TopologyTestDriver"]

S = TypeVar("S")
_AnyStore: Any = object


class TopologyTestDriver:
    """Run a topology by hand: pipe records in, read records out, look into stores.

    >>> from thulawa.dsl.builder import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in").map_values(len).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.create_input_topic("in").pipe_input("k", "value", timestamp=7)
    ...     driver.create_output_topic("out").read_record()
    Record(key='k', value=5, timestamp=7, headers=())
    """

    __test__ = False  # not a test, whatever its name

    def __init__(
        self,
        topology: Topology,
        *,
        options: TaskOptions | None = None,
        wall_clock_time: int = 0,
        partitions: int = 1,
        grouper: PartitionGrouper = by_number,
        seed: int = 0,
    ) -> None:
        if not isinstance(topology, Topology):
            raise ConfigurationError(
                f"the driver runs a Topology, as builder.build() gives it, "
                f"not a {type(topology).__name__}"
            )
        if partitions < 1:
            raise ConfigurationError("partitions must be at least 1")
        self._topology = topology
        self._options = options or TaskOptions()
        self._partitions = partitions
        self._grouper = grouper
        self._now = wall_clock_time
        self._written: dict[str, Written] = defaultdict(Written)
        self._offsets: dict[tuple[str, int], int] = defaultdict(int)
        self._encoder = Encoder(self._options, self.send)
        self._globals = GlobalTables(topology, self._options, self.send)
        self._loop = VirtualTimeLoop(seed=seed)
        self._tasks: list[Task] = []
        self._backings: dict[tuple[str, str], dict[Any, Any]] = {}
        self._readers: dict[str, dict[int, Task]] = {}
        self._sources: dict[str, Source] = {}
        self._again: deque[tuple[str, int, RawRecord]] = deque()
        try:
            self._make_tasks({})
        except BaseException:  # a processor's init may raise anything
            self.close()
            raise
        sinks = [node for node in topology.nodes.values() if isinstance(node, Sink)]
        # Sinks that write what they are given, to one partition that nobody reads again.
        self._plain_sinks = {
            sink.name
            for sink in sinks
            if not (sink.key_serde or sink.value_serde or sink.partitioner or sink.internal)
            and isinstance(sink.topic, str)
            and sink.topic not in self._readers
            and sink.topic not in self._globals.topics
            and partitions == 1
            and self._options.max_record_bytes is None
        }
        self._feeds_back = any(
            not isinstance(sink.topic, str) or sink.topic in self._readers for sink in sinks
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- topics

    def create_input_topic(
        self,
        topic: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        *,
        start: int = 0,
        auto_advance: Duration = 0,
    ) -> TestInputTopic:
        """Write to a topic, by default as the topology reads it."""
        source = self._sources.get(topic)
        if source is None and topic not in self._globals.topics:
            raise ConfigurationError(
                f"the topology does not read {topic!r}; it reads {self.input_topics()}"
            )
        if source is not None:
            key_serde = key_serde or source.key_serde
            value_serde = value_serde or source.value_serde
        step = milliseconds(auto_advance, name="auto_advance")
        return TestInputTopic(self, topic, key_serde, value_serde, start, step)

    def create_output_topic(
        self,
        topic: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> TestOutputTopic:
        """Read a topic, by default as the topology writes it."""
        for sink in self._topology.nodes.values():
            if isinstance(sink, Sink) and sink.topic == topic:
                key_serde = key_serde or sink.key_serde
                value_serde = value_serde or sink.value_serde
        return TestOutputTopic(topic, self._written[topic], key_serde, value_serde)

    def input_topics(self) -> list[str]:
        """Name the topics the topology reads from outside."""
        outside = [topic for topic, source in self._sources.items() if not source.internal]
        return [*outside, *self._globals.topics]

    def produced_topic_names(self) -> set[str]:
        """Name the topics that have been written to, also where all has been read."""
        return {topic for topic, records in self._written.items() if records.total}

    # --- time and state

    @property
    def wall_clock_time(self) -> int:
        """The driver's clock in milliseconds."""
        return self._now

    def advance_wall_clock_time(self, duration: Duration) -> None:
        """Move the clock, and fire what is due by it, once."""
        self._now += milliseconds(duration)
        for task in self._tasks:
            task.advance_wall_clock(self._now)
        self._settle()

    def get_key_value_store(self, name: str, task: int = 0) -> KeyValueStore:
        """Give a key-value store."""
        return self._store(name, task, KeyValueStore)

    def get_window_store(self, name: str, task: int = 0) -> WindowStore:
        """Give a window store."""
        return self._store(name, task, WindowStore)

    def get_session_store(self, name: str, task: int = 0) -> SessionStore:
        """Give a session store."""
        return self._store(name, task, SessionStore)

    def get_versioned_key_value_store(self, name: str, task: int = 0) -> VersionedStore:
        """Give a versioned store."""
        return self._store(name, task, VersionedStore)

    def get_state_store(self, name: str, task: int = 0) -> Store:
        """Give a store of any kind."""
        store: Store = self._store(name, task, _AnyStore)
        return store

    def get_all_state_stores(self, task: int = 0) -> dict[str, Store]:
        """Give the stores that a task of each sub-topology has, and the global ones, by name."""
        return {name: self.get_state_store(name, task) for name in self._topology.stores}

    def dropped_records(self) -> int:
        """Count the records that operators left out by their rules, or handlers skipped."""
        return sum(task.context.dropped for task in self._tasks)

    def restart(self) -> None:
        """Stop all tasks and start new ones from what their stores hold.

        A processor that keeps something elsewhere than in its stores forgets it here, as it
        would when its program is restarted.
        """
        snapshots = {task.id: task.snapshot() for task in self._tasks}
        for task in self._tasks:
            task.close()
        self._tasks.clear()
        self._make_tasks(snapshots)

    def close(self) -> None:
        """Close the processors and what async nodes hold open."""
        for task in self._tasks:
            task.close()
        self._loop.close()

    # --- for topics and tasks

    def write(self, topic: str, records: list[tuple[int, Any, Any, Headers]]) -> None:
        """Take records (timestamp, key, value, headers) of an input topic, already encoded."""
        if topic in self._globals.topics:
            for timestamp, key, value, _ in records:
                self._globals.update(topic, self._next_offset(topic, 0), key, value, timestamp)
            return
        if self._partitions == 1 and not self._feeds_back:
            first = self._offsets[topic, 0]
            self._offsets[topic, 0] += len(records)
            task = self._readers[topic][0]
            task.add(topic, 0, [(i, *record) for i, record in enumerate(records, first)])
            task.run()
            self._settle()  # a processor may have sent to a topic that is read here
            return
        for timestamp, key, value, headers in records:
            partition = partition_of(key, self._partitions)
            offset = self._next_offset(topic, partition)
            self._again.append((topic, partition, (offset, timestamp, key, value, headers)))
            self._settle()

    def send(
        self, sink: Sink | None, topic: str, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Take an output of a task."""
        if sink is not None and sink.name in self._plain_sinks:
            self._written[topic].append((key, value, timestamp, headers))
            return
        encoded = self._encoder.encode(sink, topic, key, value, timestamp, headers)
        if encoded is None:
            return
        raw_key, raw_value = encoded
        partition = self._partition(sink, key, value, raw_key)
        if topic in self._readers:
            offset = self._next_offset(topic, partition)
            self._again.append((topic, partition, (offset, timestamp, raw_key, raw_value, headers)))
        if topic in self._globals.topics:
            offset = self._next_offset(topic, 0)
            self._globals.update(topic, offset, raw_key, raw_value, timestamp)
        if sink is None or not sink.internal:
            self._written[topic].append((raw_key, raw_value, timestamp, headers))

    def _partition(self, sink: Sink | None, key: Any, value: Any, raw_key: Any) -> int:
        if sink is not None and sink.partitioner is not None:
            return chosen_partition(sink.partitioner, key, value, self._partitions, sink.name)
        return partition_of(raw_key, self._partitions)

    def _settle(self) -> None:
        """Process until nothing is left, one record at a time, in the order of arrival."""
        while self._again:
            topic, partition, record = self._again.popleft()
            task = self._readers[topic][partition]
            task.add(topic, partition, (record,))
            task.run()

    def _backing(self, task: str, store: str) -> dict[Any, Any]:
        return self._backings.setdefault((task, store), {})

    def _make_tasks(self, snapshots: Mapping[str, Mapping[str, Any]]) -> None:
        for group in self._topology.subtopologies():
            if group.is_global:
                continue
            topics = {topic: source for source in group.sources for topic in source.topics}
            self._sources |= topics
            self._readers |= {topic: {} for topic in topics}
            counts = dict.fromkeys(topics, self._partitions)
            for number, partitions in enumerate(partition_groups(counts, self._grouper)):
                task = Task(
                    group,
                    self._topology,
                    self,
                    number=number,
                    partitions=partitions,
                    options=self._options,
                    global_stores=self._globals.stores,
                    wall_clock_time=self._now,
                    backing=partial(self._backing, f"{group.id}_{number}"),
                    run_async=self._loop.run_until_complete,
                    snapshot=snapshots.get(f"{group.id}_{number}"),
                )
                self._tasks.append(task)
                for topic, numbers in partitions.items():
                    self._readers[topic] |= dict.fromkeys(numbers, task)

    def _next_offset(self, topic: str, partition: int) -> int:
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] = offset + 1
        return offset

    def _store(self, name: str, number: int, kind: type[S]) -> S:
        store: Any = self._globals.stores.get(name)
        for group in self._topology.subtopologies():
            if name in group.stores and not group.is_global:
                owners = [task for task in self._tasks if task.id == f"{group.id}_{number}"]
                store = owners[0].store(name) if owners else None
        if store is None or not isinstance(store, kind):
            known = [spec.name for spec in self._topology.stores.values()]
            what = "store" if kind is object else kind.__name__
            raise ConfigurationError(f"task {number} has no {what} {name!r}; stores are {known}")
        return store
