"""What tests of Kafka share: fill a topic, read it as a read-committed reader does, judge it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message, Producer

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.streams.operator_options import Materialized
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.topology import Topology


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


@dataclass(frozen=True)
class Verdict:
    """What a read-committed reader sees, against the numbers that were to be written.

    ``wrong`` are records whose rank in their key is not that of their number: state that is not
    what it should be.
    """

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    phantom: int = 0
    wrong: int = 0


class Judge:
    """Looks at the records of a topic as they come: numbers, or pairs of rank and number.

    A key's numbers go up by ``keys``, as `fill` gives them, so that the rank follows.
    """

    def __init__(self, *, keys: int = 7) -> None:
        self._keys = keys
        self._last: dict[bytes | str | None, int] = {}
        self._reordered = self._wrong = 0
        self.seen: Counter[int] = Counter()

    def see(self, message: Message) -> None:
        """Take the next record of its partition."""
        value = json.loads(message.value() or b"-1")
        rank, number = value if isinstance(value, list) else (None, value)
        self._wrong += rank is not None and rank != number // self._keys + 1
        self.seen[number] += 1
        self._reordered += self._last.get(message.key(), -1) > number
        self._last[message.key()] = number

    def verdict(self, expected: Iterable[int]) -> Verdict:
        """Compare what was seen with what was to be written."""
        wanted = set(expected)
        seen = self.seen.items()
        return Verdict(
            lost=len(wanted - self.seen.keys()),
            duplicated=sum(times - 1 for number, times in seen if number in wanted),
            reordered=self._reordered,
            phantom=sum(times for number, times in seen if number not in wanted),
            wrong=self._wrong,
        )


def judge(messages: Iterable[Message], expected: Iterable[int], *, keys: int = 7) -> Verdict:
    judging = Judge(keys=keys)
    for message in messages:
        judging.see(message)
    return judging.verdict(expected)


CLEAN = Verdict()
