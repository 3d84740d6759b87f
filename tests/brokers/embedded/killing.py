"""Kill a process at any point of an operation and look at what it left.

``python -m tests.brokers.embedded.killing operation folder points`` runs the operation in a forked
child over and over, each time on a fresh copy of the same log, and each time the child kills itself
a little later: points are the lines of Python run in the log, and the instructions of SQLite's
virtual machine. After each, the log must be as before or as after, and doing it again must lead to
the same end as if nothing had happened. (A process of its own, because forking pytest is unsafe.)
"""

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.brokers.embedded.helpers import ask, keyed, numbered, records
from thulawa.brokers.embedded import Log, Retention

NOW = 1_000_000.0
connect: Callable[..., sqlite3.Connection] = sqlite3.connect


class Fuse:
    """Counts points, and kills the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.points = 0

    def lay(self) -> None:
        sys.settrace(self._called)
        sqlite3.connect = self._connect  # type: ignore[assignment]

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if "/thulawa/brokers/embedded/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._burn()
        return self._line

    def _connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_progress_handler(self._burn, 1)
        return connection

    def _burn(self) -> int:
        self.points += 1
        if self.points == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


def opened(folder: Path, now: float = NOW) -> Log:
    return Log(f"file:{folder}", clock=lambda: now, auto_clean=False)


class Append:
    """A batch to two topics with its marker."""

    def prepare(self, log: Log) -> None:
        log.create_topic("a", partitions=2)
        log.create_topic("b")
        log.append({"a": keyed(("x", "old")), "b": []}, marker=("w", 0), batch=0)

    def run(self, log: Log) -> None:
        rows = keyed(*((str(n), "new") for n in range(30)))
        log.append({"a": rows, "b": rows[:10]}, marker=("w", 0), batch=1)

    def check(self, log: Log) -> None:
        new = sum(log.end_offsets("a").values()) + sum(log.end_offsets("b").values()) - 1
        assert (new, log.last_batch(("w", 0))) in ((0, 0), (40, 1))

    def check_end(self, log: Log) -> None:
        parts = [records(log, *place) for place in (("a", 0), ("a", 1), ("b", 0))]
        assert sum(map(len, parts)) == 41
        for part in parts:
            assert [record.offset for record in part] == list(range(len(part)))


class Clean:
    """Retention, compaction and the end of a tombstone, all at once."""

    def prepare(self, log: Log) -> None:
        limits = Retention(seconds=1000, tombstones=60)
        log.create_topic("t", retention=limits, compact=True)
        log.append({"t": keyed(("gone", "1"), ("too-old", "1"), timestamp=0)})
        fresh = int(NOW * 1000)
        log.append({"t": keyed(("a", "1"), ("gone", "2"), ("gone", None), timestamp=fresh)})
        with opened(Path(log.address.removeprefix("file:")), NOW - 100) as earlier:
            earlier.clean("t")
        for turn in range(12):
            log.append({"t": keyed(("a", f"{turn}"), (f"k{turn}", "v"), timestamp=fresh)})

    def run(self, log: Log) -> None:
        log.clean("t")

    def check(self, log: Log) -> None:
        table: dict[bytes | None, bytes | None] = {}
        for record in records(log, "t"):
            table[record.key] = record.value
        assert table.pop(b"gone", None) is None
        assert table.pop(b"too-old", b"1") == b"1"
        assert table == {b"a": b"11"} | {b"k%d" % n: b"v" for n in range(12)}

    def check_end(self, log: Log) -> None:
        self.check(log)
        assert len(records(log, "t")) == 13


class Delete:
    """A topic goes, another stays."""

    def prepare(self, log: Log) -> None:
        for topic in ("stays", "goes"):
            log.create_topic(topic, partitions=2)
            for _ in range(5):
                log.append({topic: numbered(range(3), partition=1)})

    def run(self, log: Log) -> None:
        if "goes" in log.topics():
            log.delete_topic("goes")
        log.clean("stays")

    def check(self, log: Log) -> None:
        assert len(records(log, "stays", 1)) == 15
        assert "goes" not in log.topics() or len(records(log, "goes", 1)) == 15

    def check_end(self, log: Log) -> None:
        assert len(records(log, "stays", 1)) == 15
        assert log.topics() == ["stays"]
        assert ask(log, "SELECT count(*) FROM batches") == [(5,)]


class Create:
    """A log and its first topic."""

    def prepare(self, log: Log) -> None:
        Path(log.address.removeprefix("file:")).mkdir()

    def run(self, log: Log) -> None:
        log.create_topic("visits", partitions=3)

    def check(self, log: Log) -> None:
        assert log.topics() in ([], ["visits"])

    def check_end(self, log: Log) -> None:
        assert log.append({"visits": numbered([1], partition=2)}).records == 1


class Commit:
    """A group's positions."""

    def prepare(self, log: Log) -> None:
        log.create_topic("visits", partitions=2)
        log.append({"visits": [*numbered(range(5), partition=0), *numbered([1], partition=1)]})

    def run(self, log: Log) -> None:
        with log.consumer("visits", group="g") as consumer:
            consumer.poll()
            consumer.commit()

    def check(self, log: Log) -> None:
        with log.consumer("visits", group="g") as consumer:
            assert consumer.positions() in ({0: 0, 1: 0}, {0: 5, 1: 1})

    def check_end(self, log: Log) -> None:
        with log.consumer("visits", group="g") as consumer:
            assert consumer.positions() == {0: 5, 1: 1}


Operation = Append | Clean | Delete | Create | Commit
OPERATIONS: dict[str, Callable[[], Operation]] = {
    kind.__name__.lower(): kind for kind in (Append, Clean, Delete, Create, Commit)
}


def in_child(operation: Operation, folder: Path, at: int) -> tuple[int, int]:
    """Run it in a child that dies at a point; give the exit code and the points passed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        fuse = Fuse(at)
        fuse.lay()
        operation.run(opened(folder))
        os.write(writing, b"%d" % fuse.points)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        points = int(pipe.read() or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), points


def kill_everywhere(operation: Operation, folder: Path, wanted: int) -> int:
    """Kill at about so many points, evenly spread; give at how many it was."""
    template = folder / "template"
    with opened(template) as log:
        operation.prepare(log)
    code, points = in_child(operation, copied(template, folder / "whole"), at=-1)
    assert code == 0
    killed = 0
    for at in range(1, points + 1, max(1, points // wanted)):
        place = copied(template, folder / f"killed-{at}")
        code, _ = in_child(operation, place, at)
        killed += code == -signal.SIGKILL
        with opened(place) as log:
            operation.check(log)
            operation.run(log)
            operation.check_end(log)
        shutil.rmtree(place)
    return killed


def copied(template: Path, place: Path) -> Path:
    shutil.copytree(template, place)
    return place


if __name__ == "__main__":
    name, where, number = sys.argv[1:]
    print(kill_everywhere(OPERATIONS[name](), Path(where), int(number)))  # noqa: T201 - the answer
