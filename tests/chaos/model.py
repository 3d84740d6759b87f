"""The output of the application, computed in plain Python from the semantics alone.

The model knows no tasks, stores or Spark. It processes the records of each partition, of its
topics the one with the earliest record first, micro-batch by micro-batch. While the broker has
more records of a topic-partition and none of them is read, the other topics of the partition wait
for it. The model gets the offsets at which the micro-batches ended, and the topic-partitions that
had more records then; it is right for any such division.
"""

import json
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from thulawa.brokers.embedded import ConsumerRecord

__all__ = ["Batch", "Model", "expected"]

_SIZE, _GRACE = 10_000, 5_000  # of the windows
_JOIN_WINDOW, _JOIN_GRACE = 2_000, 60_000

Output: TypeAlias = dict[str, list[tuple[Any, int]]]  # by key, in order: value, timestamp
Ends: TypeAlias = Mapping[str, Mapping[int, int]]  # by topic and partition: end offset


class Batch(NamedTuple):
    """The end offsets of a micro-batch, and the topic-partitions that had more records."""

    ends: Ends
    more: frozenset[tuple[str, int]] = frozenset()


def expected(topics: Mapping[str, list[list[ConsumerRecord]]], batches: Iterable[Batch]) -> "Model":
    """Return all output records and the final content of the stores.

    ``topics`` are the records of each partition.
    """
    model = Model()
    partitions = range(len(next(iter(topics.values()))))
    tasks = [_Partition(model) for _ in partitions]
    read = {(topic, number): 0 for topic in topics for number in partitions}
    waiting: dict[tuple[str, int], deque[ConsumerRecord]] = {
        partition: deque() for partition in read
    }
    for ends, more in batches:
        for (topic, number), start in read.items():
            end = max(start, ends.get(topic, {}).get(number, 0))
            waiting[topic, number].extend(topics[topic][number][start:end])
            read[topic, number] = end
        for number in partitions:
            queues = {topic: waiting[topic, number] for topic in topics}
            behind = {topic for topic in topics if (topic, number) in more}
            for topic, record in _merged(queues, behind):
                tasks[number].process(topic, record)
    for task in tasks:
        task.store_windows()
    return model


@dataclass(slots=True)
class Model:
    """Output records and stores of all partitions."""

    outputs: dict[str, Output] = field(
        default_factory=lambda: {
            name: defaultdict(list) for name in ("window-counts", "enriched", "paid")
        }
    )
    per_item: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    per_window: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, int] = field(default_factory=dict)

    def stores(self) -> dict[str, dict[str, int]]:
        """Return the entries of each store by its name."""
        return {
            "per-item": self.per_item,
            "per-window": self.per_window,
            "profiles": self.profiles,
        }


def _merged(
    queues: Mapping[str, deque[ConsumerRecord]], behind: Collection[str]
) -> Iterator[tuple[str, ConsumerRecord]]:
    """Yield the earliest of the topics' next records, ties by topic name.

    Stop when no record is left of a topic that is ``behind``.
    """
    while not any(topic in behind and not queue for topic, queue in queues.items()):
        heads = [(queue[0].timestamp, topic) for topic, queue in queues.items() if queue]
        if not heads:
            return
        _, topic = min(heads)
        yield topic, queues[topic].popleft()


class _Partition:
    """Windows and join state of one partition."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._windows: dict[tuple[str, int], tuple[int, int]] = {}
        self._order_time = -1
        self._newest_start = -1
        self._join_time = -1
        self._orders: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._payments: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._unmatched: list[tuple[int, str, int, int]] = []
        self._matched: set[int] = set()
        self._arrived = 0

    def process(self, topic: str, record: ConsumerRecord) -> None:
        assert record.key is not None
        key, time = record.key.decode(), record.timestamp
        value: Any = None if record.value is None else json.loads(record.value)
        self._arrived += 1
        if topic == "profiles":
            self._model.profiles.pop(key, None)
            if value is not None:
                self._model.profiles[key] = value["id"]
            return
        if topic == "orders":
            self._model.per_item[value["item"]] += 1
            self._count(key, time)
            seen = self._model.profiles.get(key)
            self._model.outputs["enriched"][key].append(([value["id"], seen], time))
        self._join(topic, key, value["id"], time)

    def _count(self, key: str, time: int) -> None:
        """Count an order in its window unless the window is closed."""
        self._order_time = max(self._order_time, time)
        start = time - time % _SIZE
        if start + _SIZE + _GRACE <= self._order_time:
            return
        self._newest_start = max(self._newest_start, start)
        count, latest = self._windows.get((key, start), (0, time))
        self._windows[key, start] = count + 1, max(latest, time)
        self._model.outputs["window-counts"][f"{key}@{start}"].append(
            (count + 1, max(latest, time))
        )

    def _join(self, topic: str, key: str, number: int, time: int) -> None:
        """Join orders and payments of a customer; unmatched orders are emitted after the grace."""
        if self._join_time - time > _JOIN_GRACE - _JOIN_WINDOW:
            raise AssertionError("a record is so late that its join partners may have expired")
        if time > self._join_time:
            self._join_time = time
            self._emit_unmatched()
        mine, others = self._orders[key], self._payments[key]
        if topic == "payments":
            mine, others = others, mine
        insort(mine, (time, self._arrived, number))
        matches = [(at, other) for at, _, other in others if abs(at - time) <= _JOIN_WINDOW]
        for at, other in matches:
            pair = (number, other) if topic == "orders" else (other, number)
            self._matched.add(pair[0])
            self._emit(key, *pair, max(at, time))
        if topic == "orders" and not matches:
            if time + _JOIN_WINDOW < self._join_time:
                self._emit(key, number, None, time)
            else:
                heappush(self._unmatched, (time, key, self._arrived, number))

    def _emit_unmatched(self) -> None:
        while (
            self._unmatched and self._unmatched[0][0] + _JOIN_WINDOW + _JOIN_GRACE < self._join_time
        ):
            time, key, _, number = heappop(self._unmatched)
            if number not in self._matched:
                self._emit(key, number, None, time)

    def _emit(self, key: str, order: int, payment: int | None, time: int) -> None:
        self._model.outputs["paid"][key].append(([order, payment], time))

    def store_windows(self) -> None:
        """Put the windows that have not expired into the store."""
        for (key, start), (count, _) in self._windows.items():
            if start > self._newest_start - _SIZE - _GRACE:
                self._model.per_window[f"{key}@{start}"] = count
