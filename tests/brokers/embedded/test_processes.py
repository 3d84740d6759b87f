"""Several processes at once, and kill -9: nothing confirmed is lost, nothing is there twice.

``THULAWA_LONG=1`` runs for minutes instead of seconds.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.brokers.embedded.helpers import keyed, records
from thulawa.brokers.embedded import Log, Retention

ROOT = Path(__file__).parents[3]
ROUNDS = 40 if os.environ.get("THULAWA_LONG") else 3


class Worker:
    """A process that confirms numbers; `kill` ends it and gives the last one."""

    started: ClassVar[list["Worker"]] = []

    def __init__(self, role: str, log: Log, *arguments: object) -> None:
        self.started.append(self)
        command = [sys.executable, "-m", "tests.brokers.embedded.workers", role, log.address]
        self._process = subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    def wait_until_it_works(self) -> None:
        assert self._process.stdout is not None
        self._first = self._process.stdout.readline()
        assert self._first, self.finish()

    def kill(self) -> int:
        self._process.send_signal(signal.SIGKILL)
        out, errors = self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL, errors.decode()
        # a line that was cut off by the kill does not count
        return int((self._first + out[: out.rfind(b"\n") + 1]).split()[-1])

    def clear_away(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def interrupt(self) -> None:
        """Press Ctrl-C, and tell what it does instead where that does not end it."""
        self._process.send_signal(signal.SIGINT)
        try:
            _, errors = self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired as at_first:
            with pytest.raises(subprocess.TimeoutExpired) as later:
                self._process.communicate(timeout=2)
            more = len(later.value.output or b"") - len(at_first.output or b"")
            pytest.fail(f"Ctrl-C did not end it: it has said {more} bytes since")
        assert self._process.returncode == -signal.SIGINT, errors.decode()

    def finish(self) -> list[int]:
        out, errors = self._process.communicate()
        assert self._process.returncode == 0, errors.decode()
        return [int(line) for line in out.split()]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    while Worker.started:
        Worker.started.pop().clear_away()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    return random.Random(seed)


def start(*workers: Worker) -> None:
    for worker in workers:
        worker.wait_until_it_works()


def found_by_name(log: Log, topic: str) -> dict[bytes, list[int]]:
    """Check that offsets are dense; give the numbers under each name, in their order."""
    found = defaultdict(list)
    for partition, end in log.end_offsets(topic).items():
        rows = records(log, topic, partition)
        assert [row.offset for row in rows] == list(range(end))
        for row in rows:
            name, _, number = (row.value or b"").partition(b":")
            found[name].append(int(number))
    return found


def test_killed_producers_lose_nothing_that_was_confirmed(log: Log, chance: random.Random) -> None:
    log.create_topic("visits", partitions=3)
    confirmed: dict[bytes, int] = {}
    for turn in range(ROUNDS):
        names = [f"{turn}-{number}" for number in range(3)]
        writers = {name: Worker("produce", log, name, turn) for name in names}
        start(*writers.values())
        time.sleep(chance.uniform(0, 0.4))
        confirmed |= {name.encode(): writer.kill() for name, writer in writers.items()}
    found = found_by_name(log, "visits")
    assert set(found) >= set(confirmed)
    for name, numbers in found.items():
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > confirmed[name]


def test_interrupted_producers_write_nothing_twice(log: Log, chance: random.Random) -> None:
    log.create_topic("visits", partitions=2)
    for turn in range(2 * ROUNDS):
        writers = [Worker("produce", log, f"{turn}-{number}", turn) for number in range(2)]
        start(*writers)
        time.sleep(chance.uniform(0, 0.2))
        for writer in writers:
            writer.interrupt()
    for numbers in found_by_name(log, "visits").values():
        assert numbers == list(range(len(numbers)))


def test_killed_sinks_write_each_batch_once_and_whole(log: Log, chance: random.Random) -> None:
    for topic in ("results", "dead-letters"):
        log.create_topic(topic, partitions=2)
    confirmed = [-1, -1]
    for _ in range(ROUNDS):
        # a sink that starts again repeats the batch that was not confirmed, whether or not it is in
        sinks = [Worker("sink", log, task, last + 1) for task, last in enumerate(confirmed)]
        start(*sinks)
        time.sleep(chance.uniform(0, 0.4))
        confirmed = [max(last, one.kill()) for last, one in zip(confirmed, sinks, strict=True)]
    written: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    for topic in ("results", "dead-letters"):
        for partition in (0, 1):
            for record in records(log, topic, partition):
                *place, attempt = (record.value or b"").decode().split(":")
                task, batch, index = map(int, place)
                written[task, batch].append((index, attempt))
    assert min(confirmed) >= 0
    missing = [
        (task, batch)
        for task, last in enumerate(confirmed)
        for batch in range(last + 1)
        if (task, batch) not in written
    ]
    assert missing == []
    for (_, batch), parts in written.items():
        assert len({attempt for _, attempt in parts}) == 1
        assert sorted(index for index, _ in parts) == list(range(batch % 7 * 40 + 1))


def test_readers_see_every_offset_once_while_writers_are_killed(
    log: Log, chance: random.Random
) -> None:
    log.create_topic("visits", partitions=2)
    readers = [Worker("consume", log, f"group-{n}", 1.5 * ROUNDS) for n in range(2)]
    for turn in range(ROUNDS):
        writers = [Worker("produce", log, f"{turn}-{number}", turn) for number in range(2)]
        start(*writers)
        time.sleep(chance.uniform(0.1, 0.4))
        for writer in writers:
            writer.kill()
    for reader in readers:
        assert reader.finish()[-1] > 0
    found_by_name(log, "visits")


def test_killed_cleaners_remove_nothing_that_must_stay(log: Log, chance: random.Random) -> None:
    log.create_topic("table", compact=True, retention=Retention(tombstones=3600))
    expected: dict[bytes, bytes | None] = {}
    with Log(log.address, auto_clean=False) as writer:
        for turn in range(ROUNDS):
            cleaners = [Worker("clean", log, "table") for _ in range(2)]
            start(*cleaners)
            deadline = time.monotonic() + chance.uniform(0.1, 0.4)
            while time.monotonic() < deadline:
                batch = keyed(
                    *(
                        (f"k{chance.randrange(2000)}", chance.choice([None, f"{turn}"]))
                        for _ in range(500)
                    )
                )
                writer.append({"table": batch})
                expected |= {row.key: row.value for row in batch if row.key is not None}
            for cleaner in cleaners:
                cleaner.kill()
    assert {record.key: record.value for record in records(log, "table")} == expected
    log.clean("table")
    left = records(log, "table")
    assert {record.key: record.value for record in left} == expected
    assert len(left) == len(expected)


def test_processes_that_make_the_same_log_at_once_share_it(log: Log) -> None:
    workers = [Worker("create", log, number) for number in range(4)]
    for worker in workers:
        worker.finish()
    assert len(log.topics()) == 20
    assert sum(log.end_offsets("topic-0").values()) == 4
    folder = Path(log.address.removeprefix("file:"))
    assert len(list(folder.glob("log-*.sqlite"))) == 1


def in_forked_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must not return into pytest
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_a_connection_of_its_own(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": keyed(("a", "parent"))})
    inherited = log._database._open()

    def write() -> None:
        log.append({"visits": keyed(("a", "child"))})
        assert log._database._open() is not inherited

    assert in_forked_child(write) == 0
    log.append({"visits": keyed(("a", "parent"))})
    assert [r.value for r in records(log, "visits")] == [b"parent", b"child", b"parent"]
