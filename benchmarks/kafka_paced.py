"""Records that arrive one by one, and what a reader sees of them while they do."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Consumer, TopicPartition

from benchmarks.kafka_arms import Place
from benchmarks.kafka_load import paced
from thulawa.brokers.kafka.connection import Connection

__all__ = ["Arrived", "arriving"]

KEYS = 500
_LEAD_IN = 3  # the first part of this many does not count
_AFTER = 3.0  # seconds for what arrived last


@dataclass(slots=True)
class Arrived:
    """When each result could be read, and when its record was due."""

    times: list[tuple[float, float]] = field(default_factory=list)  # due, read
    out_of_order: int = 0
    window: tuple[float, float] = (0.0, 0.0)

    @property
    def rate(self) -> float:
        """Give results a second, within the window."""
        begin, end = self.window
        return len(self._read()) / (end - begin)

    @property
    def longest_gap(self) -> float:
        """Give the longest time within the window in which no result came."""
        times = [self.window[0], *sorted(self._read()), self.window[1]]
        return max(later - earlier for earlier, later in pairwise(times))

    def percentile(self, share: float) -> float | None:
        """Give the milliseconds within which this share of results came."""
        begin, end = self.window
        waits = sorted(read - due for due, read in self.times if begin <= read < end)
        return 1000 * waits[min(len(waits) - 1, int(share * len(waits)))] if waits else None

    def _read(self) -> list[float]:
        begin, end = self.window
        return [read for _, read in self.times if begin <= read < end]


def arriving(
    place: Place, alive: Callable[[], None], rate: float, seconds: float, first: int
) -> Arrived:
    """Let records arrive at a rate, and look at the results meanwhile."""
    arrived = Arrived()
    stop = threading.Event()
    read: list[tuple[int, bytes, float]] = []
    reader = threading.Thread(target=_read, args=(place.connection, place.output, stop, read))
    reader.start()
    try:
        numbers = range(first, first + round(rate * seconds))
        keys = [number * 7919 % KEYS for number in numbers]
        began = paced(place.connection, place.source, keys, rate, first)
        time.sleep(_AFTER)
        alive()
    finally:
        stop.set()
        reader.join()
    last: dict[bytes, int] = {}
    for number, key, when in read:
        if number < first:
            continue
        arrived.times.append((began + (number - first) / rate, when))
        arrived.out_of_order += last.get(key, -1) > number
        last[key] = number
    arrived.window = (began + seconds / _LEAD_IN, began + seconds)
    return arrived


def _read(
    connection: Connection,
    topic: str,
    stop: threading.Event,
    read: list[tuple[int, bytes, float]],
) -> None:
    consumer = Consumer(
        {**connection.client(), "group.id": "bench-reader", "isolation.level": "read_committed",
         "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not stop.is_set():
            for message in consumer.consume(500, timeout=0.01):
                key, value = message.key(), message.value()
                if message.error() is None and isinstance(key, bytes) and value is not None:
                    read.append((int(value), key, time.time()))
    finally:
        consumer.close()
