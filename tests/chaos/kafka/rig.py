"""A job on a broker, fed, watched and brought back whatever dies: what chaos and soak share."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Literal, Self, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition

from tests.brokers.kafka.helpers import Judge, Verdict, filling, judge
from tests.chaos.kafka.job import AS_IT_WAS
from tests.chaos.kafka.traps import SELF, Point, Traps
from thulawa.brokers.kafka.errors import BrokerFailed
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.dev.kafka_broker import Broker

__all__ = ["VICTIMS", "Rig", "Stuck", "Victim"]

Victim: TypeAlias = Literal["driver", "worker", "broker"]
VICTIMS: tuple[Victim, ...] = ("driver", "worker", "broker")

PARTITIONS = 2
_ROOT = Path(__file__).parents[3]
_STARTS = 6
_PATIENCE = 300.0  # seconds without anything new in the output; a machine may be crowded


class Stuck(Exception):
    """The job does not go on, or a point was never reached."""


class Rig:
    """One job with topics of its own; its driver is started again whenever it has ended."""

    def __init__(
        self, job: str, broker: Broker, folder: Path, *, keys: int = 7, max_records: int = 60
    ) -> None:
        self.job = job
        self.name = f"{job}-{uuid4().hex[:8]}"
        self.traps = Traps(folder / "traps")
        self.driver_starts = 0
        self.fed = 0
        self._broker = broker
        self._connection = broker.connection
        self._folder = folder
        self._keys = keys
        self._max_records = max_records
        self._plan = AS_IT_WAS
        self._driver: subprocess.Popen[bytes] | None = None
        self._judge = Judge(keys=keys)
        self._starts_in_vain = 0
        self._reader = self._made_reader()

    def _made_reader(self) -> Consumer:
        self.traps.folder.mkdir(parents=True)
        topics = Topics(self._connection)
        for topic in (f"{self.name}-in", self.output):
            topics.ensure(topic, TopicSpec(partitions=PARTITIONS))
        reader = Consumer(
            {
                **self._connection.client(),
                "group.id": f"{self.name}-judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        reader.assign([TopicPartition(self.output, number, 0) for number in range(PARTITIONS)])
        return reader

    @property
    def output(self) -> str:
        """Name the topic the job writes."""
        return f"{self.name}-out"

    @property
    def driver(self) -> int:
        """Give the driver's process, which leads a group of its own; its JVM is in it."""
        assert self._driver is not None
        return self._driver.pid

    @property
    def processes(self) -> tuple[int, tuple[int, ...]]:
        """Give the driver's process, and those of the broker."""
        return self.driver, self._broker.status().pids

    @property
    def seen(self) -> int:
        """Give how many of the records have come out."""
        return len(self._judge.seen)

    @property
    def log(self) -> Path:
        """Give the file that the drivers have written to."""
        return self._folder / "drivers.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._reader.close()
        self.kill_driver()

    def kill_driver(self) -> None:
        """Kill the driver, Python and JVM."""
        if self._driver is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.communicate()  # and close its pipes
            self._driver = None

    def lose_checkpoint(self) -> None:
        """Remove the checkpoint of a driver that is dead: only the topics are left."""
        shutil.rmtree(self._folder / "checkpoint")

    def copy_checkpoint(self, to: str) -> None:
        """Copy the checkpoint of a driver that is dead."""
        shutil.copytree(self._folder / "checkpoint", self._folder / to)

    def put_back(self, checkpoint: str) -> None:
        """Replace the checkpoint of a driver that is dead by a copy, which is gone then."""
        self.lose_checkpoint()
        (self._folder / checkpoint).rename(self._folder / "checkpoint")

    def recreate_input(self, records: int) -> None:
        """Delete the topic that a dead driver read, create it again, and write other records."""
        topics, topic = Topics(self._connection), f"{self.name}-in"
        topics.delete(topic)
        while topic in topics.names():  # the broker takes a moment
            time.sleep(0.1)
        topics.ensure(topic, TopicSpec(partitions=PARTITIONS))
        numbers = range(self.fed, self.fed + records)
        for _ in filling(self._connection, topic, numbers, keys=self._keys):
            pass

    def is_refused(self, words: str, *, plan: str = AS_IT_WAS, patience: float = _PATIENCE) -> bool:
        """Start a driver; return whether it ends by itself, with an error of these words."""
        self.kill_driver()
        said = self.log.stat().st_size
        self._plan = plan
        self._start_driver()
        self._plan = AS_IT_WAS
        assert self._driver is not None
        try:
            failed = self._driver.wait(patience) != 0
        except subprocess.TimeoutExpired:
            failed = False
        self.kill_driver()
        return failed and words in self.log.read_bytes()[said:].decode(errors="replace")

    def mend(self) -> None:
        """Start what does not run."""
        if not self._broker.status().running:
            with suppress(BrokerFailed):  # on a crowded machine it may need another look
                self._broker.up()
        if self._driver is None or self._driver.poll() is not None:
            self.kill_driver()  # its JVM may have outlived it
            self._start_driver()

    def _start_driver(self) -> None:
        if self._starts_in_vain >= _STARTS:
            raise Stuck(f"{_STARTS} drivers in a row ended without a record{self._last_words()}")
        self._starts_in_vain += 1
        program = [
            sys.executable, "-m", "tests.chaos.kafka.job", self.job, self._connection.bootstrap,
            self.name, str(self._folder), str(self._max_records), self._plan,
        ]  # fmt: skip
        path = os.pathsep.join((str(_ROOT), os.environ.get("PYTHONPATH", "")))
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                program, cwd=_ROOT, env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.driver_starts += 1

    def feed(self, count: int) -> None:
        """Write the next records, each once, though the broker may die meanwhile."""
        self._feed(count, self.mend)

    def feed_only(self, count: int) -> None:
        """Write the next records without starting a driver."""
        self._feed(count, lambda: None)

    def _feed(self, count: int, meanwhile: Callable[[], None]) -> None:
        numbers = range(self.fed, self.fed + count)
        for _ in filling(self._connection, f"{self.name}-in", numbers, keys=self._keys):
            meanwhile()
        self.fed = numbers.stop

    def arm(self, point: Point, victim: Victim, random: Random, passes: int = 3) -> None:
        """Set a trap; a driver is killed with the worker at hand, or leaves it as a zombie."""
        victims = {
            "driver": [-self.driver, *([SELF] if random.random() < 0.5 else [])],
            "worker": [SELF],
            "broker": list(self._broker.status().pids),
        }
        self.traps.arm(point, victims[victim], random.randrange(passes))

    def await_sprung(self, patience: float = _PATIENCE) -> None:
        """Wait until the kill has happened; what dies for another reason is started again."""
        for _ in self._polling(patience, lambda: self.traps.sprung):
            if self._driver is None or self._driver.poll() is not None:
                # a driver that is a victim has sprung the trap before
                if self.traps.sprung:
                    return
                self.mend()

    def await_output(self, patience: float = _PATIENCE) -> None:
        """Wait until every record that was fed has come out, starting again what dies."""
        for _ in self._polling(patience, lambda: self.seen >= self.fed):
            self.mend()

    def _polling(self, patience: float, done: Callable[[], bool]) -> Iterator[None]:
        last = time.monotonic()
        while not done():
            if self.poll():
                last = time.monotonic()
            elif time.monotonic() - last > patience:
                raise Stuck(
                    f"{self.seen} of {self.fed} records are out, and nothing has come "
                    f"for {patience:.0f} s: {self.verdict()}{self._last_words()}"
                )
            yield

    def _last_words(self) -> str:
        words = self.log.read_bytes()[-2_000:].decode(errors="replace")
        return f"; the driver's log ends so:\n{words}"

    def poll(self, timeout: float = 0.1) -> int:
        """Look at what has come out; give how many records."""
        messages: list[Message] = self._reader.consume(1_000, timeout=timeout)
        good = [message for message in messages if message.error() is None]
        for message in good:
            self._judge.see(message)
        if good:
            self._starts_in_vain = 0
        return len(good)

    def verdict(self) -> Verdict:
        """Judge what has been seen so far."""
        return self._judge.verdict(range(self.fed))

    def final_verdict(self) -> Verdict:
        """Read the whole output again, as a reader that was not there, and judge it."""
        chunks = read_to_end(self._connection, self.output, patience=90)
        return judge((one for chunk in chunks for one in chunk), range(self.fed), keys=self._keys)


@contextmanager
def chaos_broker() -> Iterator[Broker]:
    """Start a broker that may be killed."""
    with Broker(f"chaos-{os.getpid()}", port=0) as broker:
        yield broker
