"""Kill instances at random while they count, and compare the counts with a model.

``python -m tests.health.chaos`` (``make chaos-topic-health``) writes a million messages, late and
out of order, while instances, each a process with a Spark session of its own, are started,
stopped, frozen and killed with -9; some of them share the partitions, some take all of them,
whoever has them. At the end the output topic must hold exactly what an independent model counts.
With ``--on process`` instances run their tasks themselves: they start in a second, not in ten.
With ``--kafka`` topics are those of a Kafka broker, which is started for it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
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
from tests.health.helpers import model
from tests.health.local import LocalCounts
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.dev.kafka_broker import Broker
from thulawa.health.application import WindowCounts
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.model import Cell

WINDOW, EXPIRE, PARTITIONS = 1_000, 60_000, 6
# a fault of the broker at a commit, seen once under load: the instance ends, as the page says
_BROKERS_OWN = "EndTxn commit failed: Unknown broker error"
STATUSES = (b"valid", b"invalid")
CHUNK = 5_000
BEGAN = 1_700_000_000_000
PATIENCE = 600.0

Append: TypeAlias = Callable[[Sequence[tuple[int, int, str]]], None]
"""Writes messages: partition, timestamp, status."""


def status(value: bytes | None) -> str:
    return (value or b"").decode()


@dataclass(slots=True)
class Messages:
    """Writes messages whose times go on by a second every few thousand, with much disorder."""

    append: Append
    total: int
    draw: random.Random
    sent: list[tuple[int, int, str]] = field(default_factory=list)

    def send(self) -> None:
        """Write the next chunk."""
        now = BEGAN + len(self.sent) // 4
        chosen = [self._message(now) for _ in range(min(CHUNK, self.total - len(self.sent)))]
        self.append(chosen)
        self.sent += chosen

    def _message(self, now: int) -> tuple[int, int, str]:
        draw = self.draw
        chance = draw.random()
        late = 0 if chance < 0.8 else draw.randrange(3_000)  # out of order
        late = draw.randrange(50_000) if chance > 0.95 else late
        late = draw.randrange(60_000, 120_000) if chance > 0.99 else late  # too late
        place = min(int(draw.expovariate(0.5)), PARTITIONS - 1)  # some partitions have more
        return place, now + draw.randrange(1_000) - late, STATUSES[draw.random() < 0.2].decode()


@contextmanager
def embedded(folder: Path) -> Iterator[tuple[str, Append]]:
    """Yield the address of an embedded log, and how to write to it."""
    with Log(f"file:{folder}/topics") as log:
        log.create_topic("tx", partitions=PARTITIONS)

        def append(chosen: Sequence[tuple[int, int, str]]) -> None:
            log.append({"tx": [ProducerRecord(None, s.encode(), (), t, p) for p, t, s in chosen]})

        yield log.address, append


@contextmanager
def brokered(_: Path) -> Iterator[tuple[str, Append]]:
    """Yield the address of a new Kafka broker, and how to write to it."""
    with Broker(f"chaos-{os.getpid()}", port=0) as broker:
        # its messages are older than brokers keep them
        spec = TopicSpec(partitions=PARTITIONS, settings={"retention.ms": "-1"})
        Topics(broker.connection).ensure("tx", spec)
        producer = Producer({**broker.connection.client(), "enable.idempotence": True})

        def append(chosen: Sequence[tuple[int, int, str]]) -> None:
            for partition, timestamp, status in chosen:
                producer.produce("tx", status.encode(), None, partition, timestamp=timestamp)
            if producer.flush(60):
                raise SystemExit("the broker takes no messages")

        yield f"kafka://{broker.connection.bootstrap}", append


@dataclass(slots=True)
class Chaos:
    """Instances that are started, stopped, frozen and killed."""

    folder: Path
    log: str
    on: str
    draw: random.Random
    most: int
    running: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        """Do something to somebody."""
        self._bury()
        working = [number for number in self.running if self._works(number)]
        choice = self.draw.random()
        if len(self.running) < self.most and (choice < 0.4 or not working):
            self.start("shared" if self.draw.random() < 0.7 else "all")
        elif working:
            number = self.draw.choice(working)
            if choice < 0.75:
                self._signal(number, signal.SIGKILL, "killed")
            elif choice < 0.85:
                self._signal(number, signal.SIGTERM, "stopped")
            elif number in self.frozen:
                self.thaw()
            else:
                self._signal(number, signal.SIGSTOP, "frozen")
                self.frozen.add(number)

    def start(self, division: str) -> None:
        """Start an instance; a session of its own, so that its JVM can be killed with it."""
        number = self.done["started"]
        command = [sys.executable, "-m", "tests.health.chaos", "--instance", str(number)]
        command += ["--folder", str(self.folder), "--log", self.log]
        command += ["--on", self.on, "--division", division]
        with (self.folder / f"{number}.err").open("wb") as errors:
            self.running[number] = subprocess.Popen(
                command, start_new_session=True, stdout=errors, stderr=errors
            )
        self.done["started"] += 1

    def thaw(self) -> None:
        """Resume frozen instances, which do not know how long they were stopped."""
        for number in self.frozen & set(self.running):
            os.killpg(self.running[number].pid, signal.SIGCONT)
        self.frozen.clear()

    def end(self) -> None:
        """Kill what is left."""
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def check(self) -> None:
        """Raise if an instance has ended of its own accord."""
        self._bury()

    def _works(self, number: int) -> bool:
        return (self.folder / f"{number}.works").exists()

    def _signal(self, number: int, how: signal.Signals, name: str) -> None:
        if how is not signal.SIGSTOP and number in self.frozen:
            self.thaw()
        os.killpg(self.running[number].pid, how)
        self.done[name] += 1
        if how is signal.SIGKILL:
            self.running.pop(number).wait()
        elif how is signal.SIGTERM:
            (self.folder / f"{number}.works").unlink(missing_ok=True)

    def _bury(self) -> None:
        for number, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[number]
            # told to stop a second time when it had nearly ended: Python no longer listens then
            if code in (0, -signal.SIGTERM):
                continue
            said = (self.folder / f"{number}.err").read_text(errors="replace")
            if _BROKERS_OWN not in said:
                raise SystemExit(f"instance {number} failed with {code}:\n{said[-3000:]}")
            self.done["ended by the broker"] += 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.health.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--instances", type=int, default=3, help="at most so many at once")
    parser.add_argument("--on", choices=("spark", "process"), default="spark")
    parser.add_argument("--kafka", action="store_true", help="topics of a Kafka broker")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--instance", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    parser.add_argument("--division", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.instance is not None:
        instance(options)
        return
    with tempfile.TemporaryDirectory(prefix="thulawa-chaos-") as name:
        run(options, Path(name))


def run(options: argparse.Namespace, folder: Path) -> None:
    seed = random.randrange(10**6) if options.seed is None else options.seed
    sys.stdout.write(f"seed {seed}\n")
    sys.stdout.flush()
    draw = random.Random(seed)
    began = time.monotonic()
    with (brokered if options.kafka else embedded)(folder) as (log, append):
        changelog = CountsChangelog(open_broker(log), "metrics", "chaos")
        changelog.prepare(["tx"])
        messages = Messages(append, options.messages, draw)
        chaos = Chaos(folder, log, options.on, draw, options.instances)
        pause = 1.0 if options.on == "spark" else 0.15
        try:
            while len(messages.sent) < options.messages or chaos.done["killed"] < options.kills:
                # messages last as long as the kills do
                share = (chaos.done["killed"] + 1) / max(1, options.kills)
                for _ in range(4):
                    if len(messages.sent) < min(share, 1.0) * options.messages:
                        messages.send()
                chaos.step()
                time.sleep(draw.uniform(0, 2 * pause))
            chaos.thaw()
            chaos.start("all")
            found = await_end(changelog, messages.sent, chaos)
        finally:
            chaos.end()
    expected = model(messages.sent, WINDOW, EXPIRE)
    wrong = {cell for cell in {*expected, *found} if expected.get(cell) != found.get(cell)}
    sys.stdout.write(
        f"{len(messages.sent):,} messages in {time.monotonic() - began:.0f} s; "
        f"{', '.join(f'{name} {count}' for name, count in sorted(chaos.done.items()))}; "
        f"{len(expected):,} live totals, {len(wrong)} of them wrong\n"
    )
    if wrong:
        raise SystemExit(f"for example {min(wrong, key=str)}")


def await_end(
    changelog: CountsChangelog, sent: Sequence[tuple[int, int, str]], chaos: Chaos
) -> dict[Cell, int | None]:
    """Wait until everything is counted; give what the topic holds."""
    places = [TopicPartition("tx", number) for number in range(PARTITIONS)]
    last = last_counted(sent)
    deadline = time.monotonic() + PATIENCE
    while True:
        restored = restore(changelog, places, EXPIRE)
        if all(restored[place].totals.position >= last[place.partition] for place in places):
            counts = [one for place in places for one in restored[place].totals.counts()]
            return {count.cell: count.value for count in counts}
        chaos.check()
        if not chaos.running:
            chaos.start("all")
        if time.monotonic() > deadline:
            raise SystemExit(f"not all was counted within {PATIENCE:.0f} s")
        time.sleep(0.5)


def last_counted(sent: Sequence[tuple[int, int, str]]) -> dict[int, int]:
    """Return the offset after the last message of each partition that was not late."""
    newest: dict[int, int] = {}
    offsets: Counter[int] = Counter()
    last = dict.fromkeys(range(PARTITIONS), 0)
    for partition, timestamp, _ in sent:
        offsets[partition] += 1
        window = timestamp // WINDOW * WINDOW
        newest[partition] = max(window, newest.get(partition, window))
        if newest[partition] - window <= EXPIRE:
            last[partition] = offsets[partition]
    return last


def instance(options: argparse.Namespace) -> None:
    """Count until told to stop."""
    works = options.folder / f"{options.instance}.works"
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    given: dict[str, Any] = {
        "status": status,
        "output": "metrics",
        "application_id": "chaos",
        "log": options.log,
        "window": WINDOW,
        "expire": EXPIRE,
        "every": "100 ms",
        "partitions": options.division,
        "max_records": 20_000,
        "sinks": [lambda _: works.touch()],
    }
    counts: WindowCounts
    if options.on == "process":
        counts = LocalCounts("tx", **given)
    else:
        settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
        spark = thulawa.session(f"chaos-{options.instance}", master="local[2]", settings=settings)
        counts = WindowCounts("tx", spark=spark, **given)
    with counts:
        while not stopping:
            counts.await_termination("50 ms")


if __name__ == "__main__":
    main()
