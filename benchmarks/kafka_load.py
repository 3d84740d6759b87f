"""What goes into a topic and what comes out: backlogs, paced arrivals, the clock, the order.

A record's value is its number, and the call for it takes half to one and a half of the mean, by a
checksum of that value: every system has the same calls to make, and the least time that they
take together, each key in its order, is known.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from zlib import crc32

from confluent_kafka import Consumer, Producer, TopicPartition

from thulawa.brokers.kafka.client_errors import retry_transient
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import read_to_end

__all__ = [
    "Checked",
    "Timeline",
    "Watch",
    "backlog",
    "call_seconds",
    "check",
    "check_counts",
    "least",
    "paced",
    "watching",
]

_STEPS = 1_000
_LOOK = 0.02
_PATIENCE = 60.0


def call_seconds(value: bytes, mean: float) -> float:
    """Give how long the call for a record takes; the Java peers compute the same."""
    return mean * (0.5 + crc32(value) % _STEPS / _STEPS)


def value_of(number: int) -> bytes:
    """Write a record's value."""
    return b"%d" % number


def key_of(key: Hashable) -> bytes:
    """Write a record's key."""
    return b"key-%s" % str(key).encode()


def least(keys: Sequence[Hashable], mean: float, in_flight: int) -> float:
    """Give the least seconds in which the calls for these keys can be made, each in order."""
    busy: defaultdict[Hashable, float] = defaultdict(float)
    for number, key in enumerate(keys):
        busy[key] += call_seconds(value_of(number), mean)
    return max(*busy.values(), sum(busy.values()) / in_flight)


def backlog(connection: Connection, topic: str, keys: Sequence[Hashable], first: int = 0) -> float:
    """Write records in one transaction; give the time at which all of them became visible."""
    producer = Producer(
        {**connection.client(), "transactional.id": f"{topic}-{first}", "linger.ms": 20,
         "transaction.timeout.ms": 300_000, "queue.buffering.max.messages": 2_000_000}
    )  # fmt: skip
    producer.init_transactions(60)
    producer.begin_transaction()
    for number, key in enumerate(keys, start=first):
        producer.produce(topic, value_of(number), key_of(key))
    producer.flush(300)
    producer.commit_transaction(60)
    return time.time()


def paced(
    connection: Connection, topic: str, keys: Iterable[Hashable], rate: float, first: int = 0
) -> float:
    """Write records at a rate, each in its time; give when the first was written."""
    producer = Producer({**connection.client(), "linger.ms": 1})
    began = time.time()
    for number, key in enumerate(keys, start=first):
        due = began + (number - first) / rate
        producer.poll(0)
        if (wait := due - time.time()) > 0:
            time.sleep(wait)
        producer.produce(topic, value_of(number), key_of(key), timestamp=int(due * 1000))
    producer.flush(60)
    return began


@dataclass(slots=True)
class Timeline:
    """When how much was to be seen by a read-committed reader: (time, end of the topic)."""

    looks: list[tuple[float, int]] = field(default_factory=list)

    def ended(self) -> float:
        """Give when the last record became visible."""
        return self.looks[-1][0]

    def longest_gap(self, since: float) -> float:
        """Give the longest time in which nothing became visible."""
        times = [since, *(when for when, _ in self.looks if when > since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


class Watch:
    """Looks at the end of a topic of one partition, cheaply, without reading it."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._place = TopicPartition(topic, 0)
        self.timeline = Timeline()

    def end(self) -> int:
        """Give the offset after the last committed record, transaction markers included."""
        # a leader that changes is looked for again; the brokers of a busy machine do change
        look = partial(self._consumer.get_watermark_offsets, self._place, timeout=10)
        end: int = retry_transient(look, _PATIENCE)[1]
        looks = self.timeline.looks
        if not looks or looks[-1][1] != end:
            looks.append((time.time(), end))
        return end

    def until(self, done: Callable[[int], bool], timeout: float) -> bool:
        """Look until it is done; False when it was not in time."""
        deadline = time.monotonic() + timeout
        while not done(self.end()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)
        return True


@contextmanager
def watching(connection: Connection, topic: str) -> Iterator[Watch]:
    """Watch a topic."""
    consumer = Consumer(
        {**connection.client(), "group.id": "bench-watch", "isolation.level": "read_committed"}
    )
    try:
        yield Watch(consumer, topic)
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True)
class Checked:
    """What is in an output topic: records, and what is wrong with them."""

    records: int
    missing: int
    repeated: int
    out_of_order: int


def check(connection: Connection, topic: str, first: int, count: int) -> Checked:
    """Read a whole topic; judge the records from ``first`` on, each key's numbers going up."""
    seen: Counter[int] = Counter()
    last: dict[bytes | str | None, int] = {}
    out_of_order = 0
    for chunk in read_to_end(connection, topic):
        for message in chunk:
            number = int(message.value() or b"-1")
            if number < first:
                continue
            seen[number] += 1
            out_of_order += last.get(message.key(), -1) > number
            last[message.key()] = number
    wanted = range(first, first + count)
    return Checked(
        records=sum(seen.values()),
        missing=sum(number not in seen for number in wanted),
        repeated=sum(seen.values()) - len(seen),
        out_of_order=out_of_order,
    )


def check_counts(connection: Connection, topic: str, records: int) -> Checked:
    """Read a topic of counts: those of a key must be 1, 2, 3 and so on."""
    counts: Counter[bytes | str | None] = Counter()
    seen = repeated = out_of_order = 0
    for chunk in read_to_end(connection, topic):
        for message in chunk:
            key, number = message.key(), int(message.value() or b"-1")
            repeated += number <= counts[key]
            out_of_order += number > counts[key] + 1
            counts[key] = max(counts[key], number)
            seen += 1
    return Checked(seen, records - sum(counts.values()), repeated, out_of_order)
