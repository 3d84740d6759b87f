"""What tests of Kafka share: fill a topic, read it as a read-committed reader does, judge it."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Message, Producer

from tests.chaos.harness import CLEAN, Verdict, compare
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.streams.operator_options import Materialized
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.topology import Topology

__all__ = ["CLEAN", "Judge", "Verdict", "counting", "fill", "filling", "judge", "out", "read"]


def counting(name: str, *, changelog: bool = True) -> Topology:
    """Give a program that counts the records of a topic by the remainder of their value."""
    builder = StreamsBuilder()
    by_remainder = builder.stream(f"{name}-in").group_by(lambda key, value: str(value % 3))
    kept: Materialized[str, int] = Materialized(name="counts", changelog=changelog)
    by_remainder.count(kept).to_stream().to(f"{name}-out")
    return builder.build()


def fill(connection: Connection, topic: str, numbers: Iterable[int], *, keys: int = 7) -> None:
    for waited, _ in enumerate(filling(connection, topic, numbers, keys=keys)):
        assert waited < 30, "the broker takes no records"


def filling(
    connection: Connection, topic: str, numbers: Iterable[int], *, keys: int = 7
) -> Iterator[None]:
    """Write records, each once; give way every second for as long as the broker does not answer."""
    producer = Producer(
        {**connection.client(), "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    for number in numbers:
        while True:
            try:
                producer.produce(
                    topic, b"%d" % number, b"key-%d" % (number % keys), timestamp=1_000 + number,
                    headers=[("n", b"%d" % number)] if number % 5 == 0 else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(1)
                yield
    while producer.flush(1):
        yield


def read(connection: Connection, topic: str) -> list[Message]:
    return [message for chunk in read_to_end(connection, topic) for message in chunk]


def out(topic: str, numbers: Iterable[int], *, keys: int = 7, **more: Any) -> list[OutRecord]:
    records = [
        OutRecord(topic, b"key-%d" % (n % keys), b"%d" % n, -1, 1_000 + n, None) for n in numbers
    ]
    return [record._replace(**more) for record in records]


class Judge:
    """Collects the records of a topic: numbers, or pairs of rank and number.

    The numbers of a key go up by ``keys``, as `fill` writes them, so that the rank is known.
    """

    def __init__(self, *, keys: int = 7) -> None:
        self._keys = keys
        self._by_key: dict[bytes | str | None, list[int]] = {}
        self._wrong = 0
        self.seen: set[int] = set()

    def see(self, message: Message) -> None:
        """Add the next record of its partition."""
        value = json.loads(message.value() or b"-1")
        rank, number = value if isinstance(value, list) else (None, value)
        self._wrong += rank is not None and rank != number // self._keys + 1
        self.seen.add(number)
        self._by_key.setdefault(message.key(), []).append(number)

    def verdict(self, expected: Iterable[int]) -> Verdict:
        """Compare the records seen so far with the numbers that are expected."""
        return compare(expected, self._by_key, wrong=self._wrong)


def judge(messages: Iterable[Message], expected: Iterable[int], *, keys: int = 7) -> Verdict:
    judging = Judge(keys=keys)
    for message in messages:
        judging.see(message)
    return judging.verdict(expected)
