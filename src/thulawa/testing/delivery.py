"""How a test driver delivers records to tasks: one at a time, or in random micro-batches.

`OneByOne` processes each record completely, through all sub-topologies, in the order of arrival.

`RandomBatches` runs micro-batches, as `Streams` does on Spark. A batch takes a random number of
records from each topic-partition; only the order within a partition is preserved. It then runs the
stages of the plan (`thulawa.runtime.planning`): the tasks of a stage in random order, each over all
its records. Records of a shuffle reach the next stage in the same batch; records of a repartition
topic wait for a later batch. Tasks know which of their partitions have more records than the batch
takes, and wait for these (``max_task_idle``). `with_random_latencies` makes async calls finish out
of order. The same seed repeats batches and latencies.
"""

import asyncio
import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from random import Random
from typing import Any, TypeAlias

from thulawa.runtime.blocks import RawRecord
from thulawa.runtime.planning import SOURCE_STAGE, Plan, StagedSubTopology
from thulawa.runtime.shuffled import ShuffledRecords
from thulawa.runtime.task import Task
from thulawa.topology.nodes import AsyncCall, Node
from thulawa.topology.topology import Topology

Sender: TypeAlias = tuple[int, int] | None  # sub-topology and number of a task

_SIZES = (1, 2, 5, 20, 100)  # the limit of records per partition is drawn from these for each batch
_LONGEST_LATENCY = 0.001  # seconds, of virtual time: below any sensible timeout


class OneByOne:
    """Process one record at a time, in the order of arrival."""

    def __init__(self, plan: Plan, tasks: Mapping[tuple[int, int], Task]) -> None:
        self._plan = plan
        self._tasks = tasks
        self._waiting: deque[tuple[str, int, RawRecord]] = deque()

    def append(self, topic: str, partition: int, record: RawRecord) -> None:
        """Add a record at the end of a topic-partition."""
        self._waiting.append((topic, partition, record))

    def run(self) -> None:
        """Process all pending records, and those that result from them."""
        while self._waiting:
            topic, partition, record = self._waiting.popleft()
            part = self._plan.parts[self._plan.readers[topic]]
            task = self._tasks[part.group.id, part.task_of(topic, partition)]
            task.add(topic, partition, (record,))
            task.run()

    run_some = run


class RandomBatches:
    """Process records in random micro-batches, drawn from a seed."""

    def __init__(self, plan: Plan, tasks: Mapping[tuple[int, int], Task], seed: int) -> None:
        self._plan = plan
        self._tasks = tasks
        self._seed = seed
        self._random = Random(f"{seed}/batches")
        # with the sending task; None: a producer
        self._waiting: dict[tuple[str, int], deque[tuple[Sender, RawRecord]]] = defaultdict(deque)
        self._shuffles = {name for name, one in plan.repartitions.items() if not one.is_topic}
        self._shuffled = ShuffledRecords()
        self._running: Sender = None
        # topic-partitions with more records than the batch takes, now and in the batch before
        self._behind: set[tuple[str, int]] = set()
        self._were_behind: set[tuple[str, int]] = set()

    def append(self, topic: str, partition: int, record: RawRecord) -> None:
        """Add a record at the end of a topic-partition."""
        if topic in self._shuffles:
            self._shuffled.add(topic, partition, self._running, (record,))
        else:
            self._waiting[topic, partition].append((self._running, record))

    def run(self) -> None:
        """Process all pending records, and those that result from them."""
        while self._has_records():
            self._run_batch()

    def run_some(self) -> None:
        """Process a random number of batches."""
        while self._has_records() and self._random.choice((True, False)):
            self._run_batch()

    def _has_records(self) -> bool:
        return bool(self._shuffled) or any(self._waiting.values())

    def _run_batch(self) -> None:
        batch = self._draw_batch()
        try:
            for stage in range(self._plan.stages + 1):
                members = [
                    (part, number)
                    for part in self._plan.parts.values()
                    for number in range(len(part.tasks))
                    if part.stage == stage
                ]
                self._random.shuffle(members)
                for part, number in members:
                    self._run_task(part, number, batch)
        except Exception as error:
            error.add_note(f"in a random batch: batches={self._seed} repeats the same batches")
            raise

    def _draw_batch(self) -> dict[tuple[str, int], int]:
        """Draw how many records of each partition the next batch takes: of a repartition, all."""
        most = self._random.choice(_SIZES)
        ready = {source: len(records) for source, records in self._waiting.items() if records}
        counts = {
            source: self._random.randint(0, min(most, pending)) for source, pending in ready.items()
        }
        counts |= {
            source: ready[source] for source in ready if source[0] in self._plan.repartitions
        }
        if ready and not any(counts.values()):
            counts[self._random.choice(list(ready))] = 1
        self._were_behind = self._behind
        self._behind = {source for source, pending in ready.items() if counts[source] < pending}
        return counts

    def _run_task(
        self, part: StagedSubTopology, number: int, batch: Mapping[tuple[str, int], int]
    ) -> None:
        task = self._tasks[part.group.id, number]
        has_rows = False
        for topic, partitions in part.tasks[number].items():
            for partition in partitions:
                if part.stage != SOURCE_STAGE:
                    source = topic, partition
                    task.set_behind(topic, partition, behind=source in self._behind)
                    has_rows |= source in self._behind or source in self._were_behind
                records = self._take_records(topic, partition, batch)
                if records:
                    task.add(topic, partition, records)
                    has_rows = True
        if has_rows:
            self._running = part.group.id, number
            task.run()
            self._running = None

    def _take_records(
        self, topic: str, partition: int, batch: Mapping[tuple[str, int], int]
    ) -> Sequence[RawRecord]:
        waiting = self._waiting[topic, partition]
        taken = [waiting.popleft() for _ in range(batch.get((topic, partition), 0))]
        if topic not in self._plan.repartitions:
            return [record for _, record in taken]
        for sender, record in taken:
            self._shuffled.add(topic, partition, sender, (record,))
        return self._shuffled.take(topic, partition)


def with_random_latencies(topology: Topology, random: Random) -> Topology:
    """Return the topology with a random delay before each call of an async function.

    Plain functions and the resources of async nodes stay as they are.
    """
    changed = Topology()
    for store in topology.stores.values():
        changed.add_store(store)
    for node in topology.nodes.values():
        changed.add(_delayed(node, random))
    return changed


def _delayed(node: Node, random: Random) -> Node:
    if isinstance(node, AsyncCall):
        if node.operation == "process":
            return replace(node, function=_delayed_processor(node.function, random))
        if inspect.iscoroutinefunction(node.function):
            return replace(node, function=_delayed_call(node.function, random))
    return node


def _delayed_call(function: Callable[..., Any], random: Random) -> Callable[..., Any]:
    @wraps(function)
    async def call(*arguments: Any) -> Any:
        await asyncio.sleep(random.uniform(0, _LONGEST_LATENCY))
        return await function(*arguments)

    return call


def _delayed_processor(supplier: Callable[[], Any], random: Random) -> Callable[[], Any]:
    @wraps(supplier, updated=())
    def make() -> Any:
        processor = supplier()
        processor.process = _delayed_call(processor.process, random)
        return processor

    return make
