"""What the application is to give, in plain Python, by the semantics alone.

Knows nothing of tasks, stores or Spark: it takes the records of each partition in the order in
which they meet there, of the topics the one with the earliest record first, batch by batch. While
a partition has more at the broker and nothing of it is left, the others wait for it. How the
batches were cut, and of which partitions there was more, is what it is told; any way is right.
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
_APART, _PATIENCE = 2_000, 60_000  # of the join: how far apart, and its grace

# key -> what leaves under it, in order: (value, timestamp)
Output: TypeAlias = dict[str, list[tuple[Any, int]]]
Ends: TypeAlias = Mapping[str, Mapping[int, int]]  # topic -> partition -> end


class Batch(NamedTuple):
    """Where a batch ends, and of which topic-partitions the broker had more than that."""

    ends: Ends
    more: frozenset[tuple[str, int]] = frozenset()


def expected(topics: Mapping[str, list[list[ConsumerRecord]]], batches: Iterable[Batch]) -> "Model":
    """Return everything that leaves, and what the stores hold in the end.

    ``topics`` are the records of each partition.
    """
    whole = Model()
    partitions = range(len(next(iter(topics.values()))))
    sides = [_Partition(whole) for _ in partitions]
    read = {(topic, number): 0 for topic in topics for number in partitions}
    waiting: dict[tuple[str, int], deque[ConsumerRecord]] = {place: deque() for place in read}
    for ends, more in batches:
        for (topic, number), start in read.items():
            end = max(start, ends.get(topic, {}).get(number, 0))
            waiting[topic, number].extend(topics[topic][number][start:end])
            read[topic, number] = end
        for number in partitions:
            queues = {topic: waiting[topic, number] for topic in topics}
            behind = {topic for topic in topics if (topic, number) in more}
            for topic, record in _merged(queues, behind):
                sides[number].take(topic, record)
    for side in sides:
        side.finish()
    return whole


@dataclass(slots=True)
class Model:
    """What leaves and what is kept, over all partitions."""

    outputs: dict[str, Output] = field(
        default_factory=lambda: {
            name: defaultdict(list) for name in ("window-counts", "enriched", "paid")
        }
    )
    per_item: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    per_window: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, int] = field(default_factory=dict)


def _merged(
    queues: Mapping[str, deque[ConsumerRecord]], behind: Collection[str]
) -> Iterator[tuple[str, ConsumerRecord]]:
    """Yield of the topics' next records the earliest, ties by topic; each topic in its order.

    Stop when there is nothing left of a topic that is ``behind``.
    """
    while not any(topic in behind and not queue for topic, queue in queues.items()):
        heads = [(queue[0].timestamp, topic) for topic, queue in queues.items() if queue]
        if not heads:
            return
        _, topic = min(heads)
        yield topic, queues[topic].popleft()


class _Partition:
    """The records of one partition."""

    def __init__(self, whole: Model) -> None:
        self._whole = whole
        self._windows: dict[tuple[str, int], tuple[int, int]] = {}
        self._order_time = -1
        self._newest_start = -1
        self._join_time = -1
        self._orders: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._payments: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._waiting: list[tuple[int, str, int, int]] = []
        self._matched: set[int] = set()
        self._arrived = 0

    def take(self, topic: str, record: ConsumerRecord) -> None:
        assert record.key is not None
        key, time = record.key.decode(), record.timestamp
        value: Any = None if record.value is None else json.loads(record.value)
        self._arrived += 1
        if topic == "profiles":
            self._whole.profiles.pop(key, None)
            if value is not None:
                self._whole.profiles[key] = value["id"]
            return
        if topic == "orders":
            self._whole.per_item[value["item"]] += 1
            self._count(key, time)
            seen = self._whole.profiles.get(key)
            self._whole.outputs["enriched"][key].append(([value["id"], seen], time))
        self._join(topic, key, value["id"], time)

    def _count(self, key: str, time: int) -> None:
        """Count in the order's window, unless that has closed."""
        self._order_time = max(self._order_time, time)
        start = time - time % _SIZE
        if start + _SIZE + _GRACE <= self._order_time:
            return
        self._newest_start = max(self._newest_start, start)
        count, latest = self._windows.get((key, start), (0, time))
        self._windows[key, start] = count + 1, max(latest, time)
        self._whole.outputs["window-counts"][f"{key}@{start}"].append(
            (count + 1, max(latest, time))
        )

    def _join(self, topic: str, key: str, number: int, time: int) -> None:
        """Pair orders and payments of a customer; orders that stay alone leave later."""
        if self._join_time - time > _PATIENCE - _APART:
            raise AssertionError("a record is so late that what it meets may have been dropped")
        if time > self._join_time:
            self._join_time = time
            self._give_up()
        mine, others = self._orders[key], self._payments[key]
        if topic == "payments":
            mine, others = others, mine
        insort(mine, (time, self._arrived, number))
        found = [(at, other) for at, _, other in others if abs(at - time) <= _APART]
        for at, other in found:
            pair = (number, other) if topic == "orders" else (other, number)
            self._matched.add(pair[0])
            self._leave(key, *pair, max(at, time))
        if topic == "orders" and not found:
            if time + _APART < self._join_time:
                self._leave(key, number, None, time)
            else:
                heappush(self._waiting, (time, key, self._arrived, number))

    def _give_up(self) -> None:
        while self._waiting and self._waiting[0][0] + _APART + _PATIENCE < self._join_time:
            time, key, _, number = heappop(self._waiting)
            if number not in self._matched:
                self._leave(key, number, None, time)

    def _leave(self, key: str, order: int, payment: int | None, time: int) -> None:
        self._whole.outputs["paid"][key].append(([order, payment], time))

    def finish(self) -> None:
        """Keep the windows that are not too old to be kept."""
        for (key, start), (count, _) in self._windows.items():
            if start > self._newest_start - _SIZE - _GRACE:
                self._whole.per_window[f"{key}@{start}"] = count
