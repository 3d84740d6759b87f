"""A job on a broker that is fed, watched and restarted: common to the crash matrix and the soak."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Literal, Self, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition

from tests.brokers.kafka.helpers import Judge, filling, judge
from tests.chaos.harness import Child, Stuck, Verdict, wait_until
from tests.chaos.kafka.crash_points import SELF, CrashPoints, Point
from tests.chaos.kafka.job import DEFAULT_PLAN
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import BrokerFailed

__all__ = ["VICTIMS", "Rig", "Victim", "chaos_broker"]

Victim: TypeAlias = Literal["driver", "worker", "broker"]
VICTIMS: tuple[Victim, ...] = ("driver", "worker", "broker")

PARTITIONS = 2
_MAX_STARTS = 6  # of drivers in a row, without a record
_TIMEOUT = 300.0  # seconds without output; a machine may be busy


class Rig:
    """One job with topics of its own; its driver is started again whenever it has ended."""

    def __init__(
        self, job: str, broker: DevBroker, folder: Path, *, keys: int = 7, max_records: int = 60
    ) -> None:
        self.job = job
        self.name = f"{job}-{uuid4().hex[:8]}"
        self.points = CrashPoints(folder / "crash-points")
        self.driver_starts = 0
        self.fed = 0
        self._broker = broker
        self._connection = broker.connection
        self._folder = folder
        self._keys = keys
        self._max_records = max_records
        self._driver: Child | None = None
        self._judge = Judge(keys=keys)
        self._failed_starts = 0
        self.points.folder.mkdir(parents=True)
        for topic in (self._input, self.output):
            Topics(self._connection).ensure(topic, TopicSpec(partitions=PARTITIONS))
        self._reader = self._open_reader()

    def _open_reader(self) -> Consumer:
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
    def _input(self) -> str:
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        """Name of the topic that the job writes."""
        return f"{self.name}-out"

    @property
    def driver(self) -> int:
        """Process id of the driver and of its group, to which its JVM belongs."""
        assert self._driver is not None
        return self._driver.pid

    @property
    def processes(self) -> tuple[int, tuple[int, ...]]:
        """Process ids of the driver and of the broker."""
        return self.driver, self._broker.status().pids

    @property
    def seen(self) -> int:
        """Number of records in the output, without duplicates."""
        return len(self._judge.seen)

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
            self._driver.kill()
            self._driver = None

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint of a killed driver."""
        shutil.rmtree(self._folder / "checkpoint")

    def copy_checkpoint(self, to: str) -> None:
        """Copy the checkpoint while the driver, if it runs, is suspended."""
        if self._driver is not None:
            self._driver.signal(signal.SIGSTOP)
            time.sleep(0.1)  # all threads have stopped by then
        shutil.copytree(self._folder / "checkpoint", self._folder / to)
        if self._driver is not None:
            self._driver.signal(signal.SIGCONT)

    def restore_checkpoint(self, copy: str) -> None:
        """Replace the checkpoint of a killed driver by a copy, which is moved."""
        self.remove_checkpoint()
        (self._folder / copy).rename(self._folder / "checkpoint")

    def recreate_input(self, records: int) -> None:
        """Delete the input topic of a killed driver, create it again, and write other records."""
        topics = Topics(self._connection)
        topics.delete_topic(self._input)
        wait_until(lambda: self._input not in topics.topics(), timeout=_TIMEOUT, poll=0.1)
        topics.ensure(self._input, TopicSpec(partitions=PARTITIONS))
        self._write(self.fed, records)

    def is_rejected(self, message: str, *, plan: str = DEFAULT_PLAN) -> bool:
        """Start a driver; return whether it fails with an error that contains the message."""
        self.kill_driver()
        driver = self._driver = self._start_driver(plan)
        failed = driver.wait(_TIMEOUT) not in (0, None)
        self.kill_driver()
        return failed and message in driver.output()

    def ensure_running(self) -> None:
        """Start the broker and the driver if they do not run."""
        if not self._broker.status().running:
            with suppress(BrokerFailed):  # on a busy machine the start may take another call
                self._broker.up()
        if self._driver is None or self._driver.exit_code is not None:
            last = self._driver
            self.kill_driver()  # its JVM may have outlived it
            if self._failed_starts >= _MAX_STARTS:
                raise Stuck(f"{_MAX_STARTS} drivers without a record; {_tail(last)}")
            self._driver = self._start_driver()

    def _start_driver(self, plan: str = DEFAULT_PLAN) -> Child:
        self._failed_starts += 1
        self.driver_starts += 1
        return Child(
            "tests.chaos.kafka.job", self.job, self._connection.bootstrap, self.name,
            str(self._folder), str(self._max_records), plan, log=self._folder / "drivers.log",
        )  # fmt: skip

    def feed(self, count: int) -> None:
        """Write the next records, each once, and restart what ends meanwhile."""
        self._write(self.fed, count, self.ensure_running)
        self.fed += count

    def feed_only(self, count: int) -> None:
        """Write the next records without starting a driver."""
        self._write(self.fed, count)
        self.fed += count

    def _write(self, first: int, count: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        numbers = range(first, first + count)
        for _ in filling(self._connection, self._input, numbers, keys=self._keys):
            meanwhile()

    def arm(self, point: Point, victim: Victim, random: Random, passes: int = 3) -> None:
        """Arm a crash point; a killed driver leaves the worker that reaches it behind, or not."""
        victims = {
            "driver": [-self.driver, *([SELF] if random.random() < 0.5 else [])],
            "worker": [SELF],
            "broker": list(self._broker.status().pids),
        }
        self.points.arm(point, victims[victim], random.randrange(passes))

    def await_crash(self) -> None:
        """Wait until the crash point has fired; restart what ends for another reason."""

        def step() -> int:
            found = self.poll()
            if not self.points.fired:
                self.ensure_running()
            return found

        self._wait(lambda: self.points.fired, step)

    def await_output(self) -> None:
        """Wait until every record that was fed is in the output; restart what ends."""

        def step() -> int:
            self.ensure_running()
            return self.poll()

        self._wait(lambda: self.seen >= self.fed, step)

    def _wait(self, done: Callable[[], bool], step: Callable[[], int]) -> None:
        wait_until(done, step, timeout=_TIMEOUT, state=self.state, poll=0)

    def state(self) -> str:
        """Describe how far the job is, with the end of its driver's log."""
        return f"{self.seen} of {self.fed} records, {self.verdict()}; {_tail(self._driver)}"

    def poll(self, timeout: float = 0.1) -> int:
        """Read new output; return the number of records."""
        messages: list[Message] = self._reader.consume(1_000, timeout=timeout)
        records = [message for message in messages if message.error() is None]
        for record in records:
            self._judge.see(record)
        if records:
            self._failed_starts = 0
        return len(records)

    def verdict(self) -> Verdict:
        """Compare the output so far with the input."""
        return self._judge.verdict(range(self.fed))

    def final_verdict(self) -> Verdict:
        """Read the whole output again with a new consumer, and compare it with the input."""
        chunks = read_to_end(self._connection, self.output, timeout=90)
        return judge((one for chunk in chunks for one in chunk), range(self.fed), keys=self._keys)


def _tail(driver: Child | None) -> str:
    return "no driver" if driver is None else f"the driver's log:\n{driver.output()[-2_000:]}"


@contextmanager
def chaos_broker() -> Iterator[DevBroker]:
    """Start a broker that may be killed."""
    with DevBroker(f"chaos-{os.getpid()}", port=0) as broker:
        yield broker
