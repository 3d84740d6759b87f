"""Processes for the tests to start and to kill.

``python -m tests.brokers.embedded.workers role address …``

Each says on its standard output, a line each, what has been confirmed to it: what was said must
be true whatever happens next.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from itertools import count

from thulawa.brokers.embedded import Log, ProducerRecord


def confirm(number: int) -> None:
    os.write(1, b"%d\n" % number)


def produce(log: Log, name: str, seed: str) -> None:
    """Send 0, 1, 2 … under one name; confirm the last number of each flush."""
    chance = random.Random(seed)
    numbers = count()
    with log.producer() as producer:
        while True:
            for _ in range(chance.choice((1, 3, 50, 2000))):
                last = next(numbers)
                producer.send("visits", key=name.encode(), value=b"%s:%d" % (name.encode(), last))
            producer.flush()
            confirm(last)


def sink(log: Log, task: str, first: str) -> None:
    """Write numbered batches to two topics, each attempt differently; confirm each batch."""
    chance = random.Random(os.urandom(8))
    attempt = os.urandom(4).hex()
    for batch in count(int(first)):
        parts: dict[str, list[ProducerRecord]] = {"results": [], "dead-letters": []}
        for index in range(batch % 7 * 40 + 1):
            value = f"{task}:{batch}:{index}:{attempt}".encode()
            parts[chance.choice(list(parts))].append(ProducerRecord(b"%d" % index, value))
        log.append(parts, marker=("test/sink", int(task)), batch=batch)
        confirm(batch)


def consume(log: Log, group: str, seconds: str) -> None:
    """Read to the end of the time; fail if an offset is missing or comes twice."""
    expected = dict.fromkeys(log.end_offsets("visits"), 0)
    deadline = time.monotonic() + float(seconds)
    with log.consumer("visits", group=group) as consumer:
        while time.monotonic() < deadline:
            for record in consumer.poll(1000, timeout=0.1):
                assert record.offset == expected[record.partition], record
                expected[record.partition] += 1
            confirm(sum(expected.values()))


def clean(log: Log, topic: str) -> None:
    """Clean all the time."""
    for turn in count():
        log.clean(topic)
        confirm(turn)


def create(log: Log, number: str) -> None:
    """Make topics as fast as possible."""
    for turn in range(20):
        log.create_topic(f"topic-{turn}", partitions=2)
    log.append({"topic-0": [ProducerRecord(value=number.encode())]})


if __name__ == "__main__":
    role, address, *arguments = sys.argv[1:]
    opened = Log(address, timeout=60)
    roles: dict[str, Callable[..., None]] = {
        "produce": produce,
        "sink": sink,
        "consume": consume,
        "clean": clean,
        "create": create,
    }
    roles[role](opened, *arguments)
