"""What tests of Kafka share: fill a topic, read it as a read-committed reader does, judge it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message, Producer

from thulawa.kafka.connection import Connection
from thulawa.kafka.reading import read_to_end
from thulawa.kafka.routing import OutRecord


def fill(connection: Connection, topic: str, numbers: Iterable[int], *, keys: int = 7) -> None:
    producer = Producer({**connection.client(), "partitioner": "murmur2_random"})
    for number in numbers:
        producer.produce(
            topic, b"%d" % number, b"key-%d" % (number % keys), timestamp=1_000 + number,
            headers=[("n", b"%d" % number)] if number % 5 == 0 else None,
        )  # fmt: skip
    assert producer.flush(30) == 0


def read(connection: Connection, topic: str) -> list[Message]:
    return [message for chunk in read_to_end(connection, topic) for message in chunk]


def out(topic: str, numbers: Iterable[int], *, keys: int = 7, **more: Any) -> list[OutRecord]:
    records = [
        OutRecord(topic, b"key-%d" % (n % keys), b"%d" % n, -1, 1_000 + n, None) for n in numbers
    ]
    return [record._replace(**more) for record in records]


@dataclass(frozen=True)
class Verdict:
    """What a read-committed reader sees, against the numbers that were to be written."""

    lost: int
    duplicated: int
    reordered: int
    phantom: int


def judge(messages: list[Message], expected: Iterable[int]) -> Verdict:
    wanted = set(expected)
    seen: Counter[int] = Counter()
    last: dict[bytes | str | None, int] = {}
    reordered = 0
    for message in messages:
        number = int(message.value() or b"-1")
        seen[number] += 1
        if last.get(message.key(), -1) > number:
            reordered += 1
        last[message.key()] = number
    return Verdict(
        lost=len(wanted - seen.keys()),
        duplicated=sum(times - 1 for number, times in seen.items() if number in wanted),
        reordered=reordered,
        phantom=sum(times for number, times in seen.items() if number not in wanted),
    )


CLEAN = Verdict(lost=0, duplicated=0, reordered=0, phantom=0)
