"""Kill instances at random while they count, and compare the counts with a model.

``python -m tests.health.chaos`` (``make chaos-topic-health``) writes a million messages, late and
out of order, while instances, each a process with a Spark session of its own, are started,
stopped, suspended and killed with -9. Some of them share the partitions, others claim all
partitions, whoever owns them. At the end the output topic must hold exactly the counts of an
independent model. With ``--on process`` instances run their tasks in their own process and start
in a second instead of ten. With ``--kafka`` the topics are on a Kafka broker, which is started for
the run.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka import Producer

import thulawa
from tests.chaos.harness import (
    QUICK_SESSION,
    Child,
    Row,
    Verdict,
    end_with_parent,
    parse,
    report,
    run_program,
    verdict_row,
    wait_until,
)
from tests.health.helpers import model
from tests.health.local import LocalCounts
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.dev.kafka_broker import DevBroker
from thulawa.health.application import WindowCounts
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.counts import Cell

WINDOW, EXPIRE, PARTITIONS = 1_000, 60_000, 6
# an error of the broker at a commit, seen once under load; the instance ends, as documented
_BROKER_ERROR = "EndTxn commit failed: Unknown broker error"
STATUSES = (b"valid", b"invalid")
CHUNK = 5_000
START = 1_700_000_000_000
TIMEOUT = 600.0

Message: TypeAlias = tuple[int, int, str]  # partition, timestamp, status
Append: TypeAlias = Callable[[Sequence[Message]], None]


def status(value: bytes | None) -> str:
    return (value or b"").decode()


@dataclass(slots=True)
class Messages:
    """Writes messages whose timestamps advance by a second every 4,000, many out of order."""

    append: Append
    total: int
    draw: random.Random
    sent: list[Message] = field(default_factory=list)

    def send(self) -> None:
        """Write the next chunk."""
        now = START + len(self.sent) // 4
        chunk = [self._message(now) for _ in range(min(CHUNK, self.total - len(self.sent)))]
        self.append(chunk)
        self.sent += chunk

    def _message(self, now: int) -> Message:
        draw = self.draw
        chance = draw.random()
        late = 0 if chance < 0.8 else draw.randrange(3_000)  # out of order
        late = draw.randrange(50_000) if chance > 0.95 else late
        late = draw.randrange(60_000, 120_000) if chance > 0.99 else late  # expired
        partition = min(int(draw.expovariate(0.5)), PARTITIONS - 1)  # partitions of unequal size
        status = STATUSES[draw.random() < 0.2].decode()
        return partition, now + draw.randrange(1_000) - late, status


@contextmanager
def embedded(folder: Path) -> Iterator[tuple[str, Append]]:
    """Yield the address of an embedded log and a function that writes to it."""
    with Log(f"file:{folder}/topics") as log:
        log.create_topic("tx", partitions=PARTITIONS)

        def append(chunk: Sequence[Message]) -> None:
            log.append({"tx": [ProducerRecord(None, s.encode(), (), t, p) for p, t, s in chunk]})

        yield log.address, append


@contextmanager
def kafka(_: Path) -> Iterator[tuple[str, Append]]:
    """Yield the address of a new Kafka broker and a function that writes to it."""
    with DevBroker(f"chaos-{os.getpid()}", port=0) as broker:
        # the timestamps are older than the default retention
        spec = TopicSpec(partitions=PARTITIONS, settings={"retention.ms": "-1"})
        Topics(broker.connection).ensure("tx", spec)
        producer = Producer({**broker.connection.client(), "enable.idempotence": True})

        def append(chunk: Sequence[Message]) -> None:
            for partition, timestamp, status in chunk:
                producer.produce("tx", status.encode(), None, partition, timestamp=timestamp)
            if producer.flush(60):
                raise SystemExit("the broker accepts no messages")

        yield f"kafka://{broker.connection.bootstrap}", append


@dataclass(slots=True)
class Instances:
    """Instances that are started, stopped, suspended and killed at random."""

    folder: Path
    log: str
    on: str
    draw: random.Random
    maximum: int
    running: dict[int, Child] = field(default_factory=dict)
    suspended: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        """Start an instance, or signal one that has counted."""
        self.check()
        counting = [number for number in self.running if self._marker(number).exists()]
        choice = self.draw.random()
        if len(self.running) < self.maximum and (choice < 0.4 or not counting):
            self.start("shared" if self.draw.random() < 0.7 else "all")
        elif counting:
            number = self.draw.choice(counting)
            if choice < 0.75:
                self._kill(number)
            elif choice < 0.85:
                self._stop(number)
            elif number in self.suspended:
                self.resume()
            else:
                self.running[number].signal(signal.SIGSTOP)
                self.suspended.add(number)
                self.done["suspended"] += 1

    def start(self, division: str) -> None:
        """Start an instance."""
        number = self.done["started"]
        self.running[number] = Child(
            "tests.health.chaos", "--instance", str(number), "--folder", str(self.folder),
            "--log", self.log, "--on", self.on, "--division", division, log=self._log(number),
        )  # fmt: skip
        self.done["started"] += 1

    def resume(self) -> None:
        """Resume suspended instances, which do not know how long they were suspended."""
        for number in self.suspended & set(self.running):
            self.running[number].signal(signal.SIGCONT)
        self.suspended.clear()

    def end(self) -> None:
        """Kill all instances."""
        for child in self.running.values():
            child.kill()

    def check(self) -> None:
        """Remove instances that have stopped; exit if one has failed."""
        for number, child in list(self.running.items()):
            code = child.exit_code
            if code is None:
                continue
            child.kill()
            del self.running[number]
            # a second SIGTERM during shutdown ends Python at once
            if code in (0, -signal.SIGTERM):
                continue
            if _BROKER_ERROR not in child.output():
                raise SystemExit(f"instance {number}, exit code {code}:\n{child.output()[-3000:]}")
            self.done["ended by the broker"] += 1

    def _log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def _marker(self, number: int) -> Path:
        return self.folder / f"{number}.counting"

    def _kill(self, number: int) -> None:
        if number in self.suspended:
            self.resume()
        self.running.pop(number).kill()
        self.done["killed"] += 1

    def _stop(self, number: int) -> None:
        if number in self.suspended:
            self.resume()
        self.running[number].signal(signal.SIGTERM)
        self._marker(number).unlink(missing_ok=True)
        self.done["stopped"] += 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.health.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--instances", type=int, default=3, help="at most so many at a time")
    parser.add_argument("--on", choices=("spark", "process"), default="spark")
    parser.add_argument("--kafka", action="store_true", help="topics on a Kafka broker")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--instance", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    parser.add_argument("--division", help=argparse.SUPPRESS)
    options = parse(parser, arguments)
    if options.instance is not None:
        count(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="thulawa-chaos-") as name:
        rows = run(options, Path(name))
        sections = [("counts", "Window counts", rows)]
        return report("chaos-topic-health", sections, as_json=options.json, seed=options.seed)


def run(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Write messages while instances are killed; yield the row of the comparison."""
    draw = random.Random(options.seed)
    started = time.monotonic()
    with (kafka if options.kafka else embedded)(folder) as (log, append):
        changelog = CountsChangelog(open_broker(log), "metrics", "chaos")
        changelog.prepare(["tx"])
        messages = Messages(append, options.messages, draw)
        instances = Instances(folder, log, options.on, draw, options.instances)
        pause = 1.0 if options.on == "spark" else 0.15
        try:
            while len(messages.sent) < options.messages or instances.done["killed"] < options.kills:
                # messages are spread over all kills
                share = (instances.done["killed"] + 1) / max(1, options.kills)
                for _ in range(4):
                    if len(messages.sent) < min(share, 1.0) * options.messages:
                        messages.send()
                instances.step()
                time.sleep(draw.uniform(0, 2 * pause))
            instances.resume()
            instances.start("all")
            found = await_counts(changelog, messages.sent, instances)
        finally:
            instances.end()
    expected = model(messages.sent, WINDOW, EXPIRE)
    wrong = {cell for cell in {*expected, *found} if expected.get(cell) != found.get(cell)}
    row = verdict_row(
        Verdict(wrong=len(wrong)), messages=len(messages.sent), totals=len(expected),
        seconds=round(time.monotonic() - started), **instances.done,
    )  # fmt: skip
    yield row | {"example": str(min(wrong, key=str, default=""))}


def await_counts(
    changelog: CountsChangelog, sent: Sequence[Message], instances: Instances
) -> dict[Cell, int | None]:
    """Wait until all messages are counted; return the counts of the output topic."""
    partitions = [TopicPartition("tx", number) for number in range(PARTITIONS)]
    ends = counted_ends(sent)
    counts: dict[Cell, int | None] = {}

    def done() -> bool:
        found = restore(changelog, partitions, EXPIRE)
        restored = [found[partition].totals for partition in partitions]
        counts.clear()
        counts.update((one.cell, one.value) for totals in restored for one in totals.counts())
        return all(one.position >= ends[number] for number, one in enumerate(restored))

    def step() -> None:
        instances.check()
        if not instances.running:
            instances.start("all")

    wait_until(done, step, timeout=TIMEOUT, poll=0.2)
    return counts


def counted_ends(sent: Sequence[Message]) -> dict[int, int]:
    """Return the offset after the last message of each partition that has not expired."""
    newest: dict[int, int] = {}
    offsets: Counter[int] = Counter()
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for partition, timestamp, _ in sent:
        offsets[partition] += 1
        window = timestamp // WINDOW * WINDOW
        newest[partition] = max(window, newest.get(partition, window))
        if newest[partition] - window <= EXPIRE:
            ends[partition] = offsets[partition]
    return ends


def count(options: argparse.Namespace) -> None:
    """Run one instance until it gets SIGTERM."""
    marker = options.folder / f"{options.instance}.counting"
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    end_with_parent()
    signal.signal(signal.SIGTERM, stop)
    arguments: dict[str, Any] = {
        "status": status,
        "output": "metrics",
        "application_id": "chaos",
        "log": options.log,
        "window": WINDOW,
        "expire": EXPIRE,
        "every": "100 ms",
        "partitions": options.division,
        "max_records": 20_000,
        "sinks": [lambda _: marker.touch()],
    }
    counts: WindowCounts
    if options.on == "process":
        counts = LocalCounts("tx", **arguments)
    else:
        name = f"chaos-{options.instance}"
        spark = thulawa.session(name, master="local[2]", settings=QUICK_SESSION)
        counts = WindowCounts("tx", spark=spark, **arguments)
    with counts:
        while not stopping:
            counts.await_termination("50 ms")


if __name__ == "__main__":
    run_program(main)
