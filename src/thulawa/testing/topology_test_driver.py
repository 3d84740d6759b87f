"""TopologyTestDriver: run a topology in one process, synchronously, without Kafka or Spark.

Topics hold bytes, as in Kafka: records are serialized by the serdes of the topology, or by the
defaults of `Streams`. Tasks, repartitions and their partitions are planned as for Spark
(`thulawa.runtime.planning`). The wall clock advances only when the test advances it. Async nodes
run through the engine in virtual time: an hour of backoff costs nothing, and races are decided by a
seed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, Self, TypeVar

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.partitioning import partition_of
from thulawa.core.serdes import Serde, Serdes
from thulawa.errors import ConfigurationError
from thulawa.runtime.global_tables import GlobalTables
from thulawa.runtime.metrics import NodeMetrics, RecordCounts, node_metrics
from thulawa.runtime.partition_groups import PartitionGrouper, by_number
from thulawa.runtime.planning import plan
from thulawa.runtime.task import Task
from thulawa.runtime.task_options import TaskOptions
from thulawa.state.specs import Store
from thulawa.state.stores import KeyValueStore, VersionedStore
from thulawa.state.window_stores import SessionStore, WindowStore
from thulawa.testing.backings import LoggedBacking, MergedBacking, changelog_record, changelog_topic
from thulawa.testing.delivery import OneByOne, RandomBatches, with_random_latencies
from thulawa.testing.driver_topics import (
    InputRecord,
    TestInputTopic,
    TestOutputTopic,
    UnreadRecords,
    WrittenRecord,
)
from thulawa.testing.loop import VirtualTimeLoop
from thulawa.testing.task_collector import Outputs, TaskCollector
from thulawa.topology.nodes import GlobalTable, Sink, Source
from thulawa.topology.topology import Topology

S = TypeVar("S")
_AnyStore: Any = object


class TopologyTestDriver:
    """Run a topology in a test: pipe records in, read records out, read stores.

    Every topic has ``partitions`` partitions. ``key_serde`` and ``value_serde`` are the defaults
    where the topology names none, as those of `Streams`: text and JSON.

    Each record is processed completely, through all sub-topologies, before the next one. With
    ``batches``, a seed, records are buffered until the test reads an output or a store or advances
    the clock, and are then processed in random micro-batches, as on Spark: each with records of
    several topics, and with async calls that finish out of order. The same seed repeats the run.

    >>> from thulawa.streams.streams_builder import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in").map_values(len).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.create_input_topic("in").pipe_input("k", "value", timestamp=7)
    ...     driver.create_output_topic("out").read_record()
    Record(key='k', value=5, timestamp=7, headers=())
    """

    __test__ = False  # not a test class

    def __init__(  # noqa: PLR0913 optional, and named
        self,
        topology: Topology,
        *,
        options: TaskOptions | None = None,
        wall_clock_time: int = 0,
        partitions: int = 1,
        grouper: PartitionGrouper = by_number,
        seed: int = 0,
        batches: int | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> None:
        if not isinstance(topology, Topology):
            raise ConfigurationError(
                f"the driver needs a Topology, as builder.build() returns it, "
                f"not a {type(topology).__name__}"
            )
        if partitions < 1:
            raise ConfigurationError("partitions must be at least 1")
        self._options = options or TaskOptions()
        self._partitions = partitions
        if batches is not None:
            seed = batches
            topology = with_random_latencies(topology, Random(f"{seed}/latencies"))
            if self._options.commit is None:
                self._options = replace(self._options, commit="batch")
        self._plan = plan(
            topology,
            {topic: partitions for topic, node in _sources(topology).items() if not node.internal},
            key_serde=key_serde,
            value_serde=value_serde,
            grouper=grouper,
            keeps_time=self._options.on_bad_timestamp == "partition_time",
        )
        self._sources = _sources(self._plan.topology)
        sinks = [node for node in topology.nodes.values() if isinstance(node, Sink)]
        self._now = wall_clock_time
        self._written: dict[str, UnreadRecords] = defaultdict(UnreadRecords)
        self._counts: RecordCounts = Counter()  # of tasks closed by `restart`
        self._turns = count()  # for the round-robin of records without a key
        self._offsets: dict[tuple[str, int], int] = defaultdict(int)
        self._outputs = Outputs(
            self._plan,
            self._options,
            self._receive,
            self._repartition,
            key_serde or Serdes.string(),
            partitions,
            frozenset(sink.name for sink in sinks if sink.key_serde is None),
        )
        self._globals = GlobalTables(
            self._plan.topology, self._options, TaskCollector(self._outputs).send
        )
        self._loop = VirtualTimeLoop(seed=seed)
        self._tasks: dict[tuple[int, int], Task] = {}  # by sub-topology and number
        self._backings: dict[tuple[str, str], LoggedBacking] = {}
        self._delivery: OneByOne | RandomBatches = (
            OneByOne(self._plan, self._tasks)
            if batches is None
            else RandomBatches(self._plan, self._tasks, batches)
        )
        self._in_batches = batches is not None
        self._feeds_back = any(
            not isinstance(sink.topic, str) or sink.topic in self._plan.readers for sink in sinks
        )
        try:
            self._make_tasks({})
        except BaseException:  # a processor's init may raise anything
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.process_all_available()
        finally:
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
        """Return an input topic; the default serdes are those that the topology reads it with."""
        node: Source | GlobalTable | None = self._sources.get(topic)
        node = node or self._globals.topics.get(topic)
        if node is None or (isinstance(node, Source) and node.internal):
            raise ConfigurationError(
                f"the topology does not read {topic!r}; it reads {self.input_topics()}"
            )
        key_serde, value_serde = key_serde or node.key_serde, value_serde or node.value_serde
        assert key_serde is not None  # the plan fills them in
        assert value_serde is not None
        step = milliseconds(auto_advance, name="auto_advance")
        return TestInputTopic(topic, self._write, key_serde, value_serde, start, step)

    def create_output_topic(
        self,
        topic: str,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
    ) -> TestOutputTopic:
        """Return an output topic; the default serdes are those that the topology writes it with.

        Repartition topics have their name in `describe()`, and the changelog of a store is
        ``<store>-changelog``: both hold deserialized values.
        """
        inner = {*self._plan.repartitions, *map(changelog_topic, self._plan.topology.stores)}
        if topic in inner and (key_serde or value_serde):
            raise ConfigurationError(
                f"{topic!r} is an internal topic and holds deserialized values: remove the serdes"
            )

        def unread() -> UnreadRecords:
            self.process_all_available()
            return self._written[topic]

        return TestOutputTopic(topic, unread, key_serde, value_serde)

    def input_topics(self) -> list[str]:
        """Return the external topics that the topology reads."""
        outside = [topic for topic, source in self._sources.items() if not source.internal]
        return [*outside, *self._globals.topics]

    def produced_topic_names(self) -> set[str]:
        """Return the topics that have been written to."""
        self.process_all_available()
        return {topic for topic, records in self._written.items() if records.total}

    # --- time and state

    @property
    def wall_clock_time(self) -> int:
        """The driver's clock in milliseconds."""
        return self._now

    def advance_wall_clock_time(self, duration: Duration) -> None:
        """Advance the wall clock, and fire the due punctuations once."""
        self.process_all_available()
        self._now += milliseconds(duration)
        for task in self._tasks.values():
            task.advance_wall_clock(self._now)
        self.process_all_available()

    def process_all_available(self) -> None:
        """Process the buffered records; without ``batches`` there are none."""
        self._delivery.run()

    def get_key_value_store(self, name: str, task: int | None = None) -> KeyValueStore:
        """Return a key-value store, of one task or of all (see `get_state_store`)."""
        return self._store(name, task, KeyValueStore)

    def get_window_store(self, name: str, task: int | None = None) -> WindowStore:
        """Return a window store, of one task or of all (see `get_state_store`)."""
        return self._store(name, task, WindowStore)

    def get_session_store(self, name: str, task: int | None = None) -> SessionStore:
        """Return a session store, of one task or of all (see `get_state_store`)."""
        return self._store(name, task, SessionStore)

    def get_versioned_key_value_store(self, name: str, task: int | None = None) -> VersionedStore:
        """Return a versioned store, of one task or of all (see `get_state_store`)."""
        return self._store(name, task, VersionedStore)

    def get_state_store(self, name: str, task: int | None = None) -> Store:
        """Return a store of any kind.

        Without ``task``, the store of a sub-topology with several tasks is a copy of all its
        entries as they are now; it can be read, but not changed.
        """
        store: Store = self._store(name, task, _AnyStore)
        return store

    def get_all_state_stores(self, task: int | None = None) -> dict[str, Store]:
        """Return the stores of a task of each sub-topology, or of all, and the global ones."""
        return {name: self.get_state_store(name, task) for name in self._plan.topology.stores}

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the dropped records of each node, by name, as `Streams` does."""
        self.process_all_available()
        counts = [task.context.counts for task in self._tasks.values()]
        return node_metrics([*counts, self._globals.counts, self._counts])

    def dropped_records(self) -> int:
        """Return the number of records that all nodes dropped."""
        return sum(node.dropped_records for node in self.metrics().values())

    def restart(self) -> None:
        """Stop all tasks and start new ones from their stores.

        Processors lose everything that is not in their stores, as in a restart of the application.
        With ``batches``, some of the buffered records are processed before the restart.
        """
        self._delivery.run_some()
        snapshots = {task.id: task.snapshot() for task in self._tasks.values()}
        for task in self._tasks.values():
            self._counts.update(task.context.counts)
            task.close()
        self._tasks.clear()
        self._make_tasks(snapshots)

    def close(self) -> None:
        """Close the processors, and the resources of async nodes."""
        for task in self._tasks.values():
            task.close()
        self._loop.close()

    # --- for topics and tasks

    def _write(self, topic: str, records: list[InputRecord]) -> None:
        if topic in self._globals.topics:
            for timestamp, key, value, _ in records:
                self._globals.update(topic, self._next_offset(topic, 0), key, value, timestamp)
            return
        if self._partitions == 1 and not self._feeds_back and not self._in_batches:
            first = self._offsets[topic, 0]
            self._offsets[topic, 0] += len(records)
            task = self._tasks[self._plan.readers[topic], 0]
            task.add(topic, 0, [(i, *record) for i, record in enumerate(records, first)])
            task.run()
            self._delivery.run()  # a processor may have sent to a topic that is read here
            return
        for record in records:
            self._append(topic, self._partition(record[1]), record)
            if not self._in_batches:
                self._delivery.run()

    def _receive(self, topic: str, partition: int | None, record: WrittenRecord) -> None:
        """Accept a record that a task wrote to a topic; None: its key decides the partition."""
        key, value, timestamp, headers = record[:4]
        self._written[topic].append(record)
        if topic in self._plan.readers:
            if partition is None:
                partition = self._partition(key)
            self._append(topic, partition, (timestamp, key, value, headers))
        if topic in self._globals.topics:
            self._globals.update(topic, self._next_offset(topic, 0), key, value, timestamp)

    def _repartition(self, topic: str, partition: int, record: WrittenRecord, key: Any) -> None:
        """Accept a record of a repartition, and the key that is sent."""
        self._written[topic].append(record)
        self._append(topic, partition, (record.timestamp, key, record.value, record.headers))

    def _partition(self, raw_key: bytes | None) -> int:
        if raw_key is None:
            return next(self._turns) % self._partitions
        return partition_of(raw_key, self._partitions)

    def _append(self, topic: str, partition: int, record: InputRecord) -> None:
        self._delivery.append(topic, partition, (self._next_offset(topic, partition), *record))

    def _backing(self, task: tuple[int, int], store: str) -> LoggedBacking:
        name = f"{task[0]}_{task[1]}", store
        if name not in self._backings:
            self._backings[name] = LoggedBacking(partial(self._log_change, task, store))
        return self._backings[name]

    def _log_change(
        self, task: tuple[int, int], store: str, key: Any, before: Any, after: Any
    ) -> None:
        spec = self._plan.topology.stores[store]
        key, value, timestamp = changelog_record(spec, key, before, after)
        if timestamp is None:
            timestamp = max(self._tasks[task].context.stream_time, 0) if task in self._tasks else 0
        self._written[changelog_topic(store)].append(WrittenRecord(key, value, timestamp))

    def _make_tasks(self, snapshots: Mapping[str, Mapping[str, Any]]) -> None:
        for part in self._plan.parts.values():
            for number, partitions in enumerate(part.tasks):
                name = part.group.id, number
                collector = TaskCollector(self._outputs)
                self._tasks[name] = Task(
                    part.group,
                    self._plan.topology,
                    collector,
                    number=number,
                    partitions=partitions,
                    options=self._options,
                    global_stores=self._globals.stores,
                    wall_clock_time=self._now,
                    backing=partial(self._backing, name),
                    run_async=self._loop.run_until_complete,
                    snapshot=snapshots.get(f"{part.group.id}_{number}"),
                )
                collector.attach(self._tasks[name].context)

    def _next_offset(self, topic: str, partition: int) -> int:
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] = offset + 1
        return offset

    def _store(self, name: str, number: int | None, kind: type[S]) -> S:
        self.process_all_available()
        store: Any = self._globals.stores.get(name)
        owners = {
            task: host
            for (group, task), host in self._tasks.items()
            if name in self._plan.parts[group].group.stores and number in (None, task)
        }
        if len(owners) == 1:
            (owner,) = owners.values()
            store = owner.store(name)
        elif owners:
            entries: dict[int, Mapping[Any, Any]] = {
                task: self._backings.get((host.id, name), {}) for task, host in owners.items()
            }
            store = self._plan.topology.stores[name].open(MergedBacking(name, entries))
        if store is None or not isinstance(store, kind):
            known = list(self._plan.topology.stores)
            what = "store" if kind is object else kind.__name__
            whose = "there is" if number is None else f"task {number} has"
            raise ConfigurationError(f"{whose} no {what} {name!r}; stores are {known}")
        return store


def _sources(topology: Topology) -> dict[str, Source]:
    """Return the sources of a topology by topic."""
    sources = (node for node in topology.nodes.values() if isinstance(node, Source))
    return {topic: source for source in sources for topic in source.topics}
