"""Shared parts of the chaos runs: child processes, waiting, verdicts and reports.

A chaos run starts programs, kills them, waits until their output is complete, compares the output
with what is expected, and reports one row for each thing it has compared. Three runs use this
module: `tests.chaos` (Streams on the embedded log), `tests.chaos.kafka` (`map_by_key` and Streams
on Kafka, killed at crash points) and `tests.health.chaos` (window counts).
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from benchmarks.report import Column, Progress, Report, figure, machine

__all__ = [
    "CLEAN",
    "QUICK_SESSION",
    "Child",
    "ProcessInfo",
    "Row",
    "Stuck",
    "Verdict",
    "compare",
    "end_with_parent",
    "parse",
    "process_table",
    "report",
    "run_program",
    "verdict_row",
    "wait_until",
]

Row: TypeAlias = dict[str, Any]

_ROOT = Path(__file__).parents[2]
# Programs of a chaos run live for seconds: the optimizing compiler costs them more than it saves.
_JVM_DEFAULTS = dict.fromkeys(
    ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"), "-XX:TieredStopAtLevel=1"
)
QUICK_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings of a Spark session that starts with the least work."""


class Stuck(Exception):
    """A program ended by itself, or made no progress until the timeout."""


class Child:
    """A Python program that runs in a process group of its own and appends its output to a log.

    The JVM that PySpark starts belongs to the group, so that signals reach both. The program ends
    with its parent if it calls `end_with_parent`.
    """

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._log = log
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the program, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int | None:
        """Return the exit code of the program; None if it still runs after the timeout."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the whole group: the JVM may outlive the program."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._process.communicate()  # reap the process and close its pipe

    def output(self) -> str:
        """Return what the program has written to its log."""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def check_running(self) -> None:
        """Raise `Stuck` if the program has ended."""
        if self.exit_code is not None:
            raise Stuck(f"exit code {self.exit_code}; end of the log:\n{self.output()[-3_000:]}")


def end_with_parent() -> None:
    """End this program as soon as its parent does: `Child` holds the other end of its stdin."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class ProcessInfo(NamedTuple):
    """A row of the operating system's process table."""

    parent: int
    resident_kib: int
    command: str


def process_table() -> dict[int, ProcessInfo]:
    """Return all processes of the machine by their ids."""
    shown = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,rss=,comm="],  # noqa: S607 wherever it is
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = (line.split(None, 3) for line in shown.stdout.splitlines())
    return {int(pid): ProcessInfo(int(parent), int(size), name) for pid, parent, size, name in rows}


def wait_until(
    done: Callable[[], bool],
    step: Callable[[], object] = lambda: None,
    *,
    timeout: float,
    state: Callable[[], str] = lambda: "",
    poll: float = 0.02,
) -> None:
    """Call ``step`` every ``poll`` seconds until ``done()`` is true.

    A step that returns a true value has made progress. Raise `Stuck` after ``timeout`` seconds
    without progress; ``state()`` is part of its message.
    """
    last = time.monotonic()
    while not done():
        if step():
            last = time.monotonic()
        elif time.monotonic() - last > timeout:
            raise Stuck(f"no progress for {timeout:.0f} s; {state()}")
        time.sleep(poll)


@dataclass(frozen=True)
class Verdict:
    """The number of differences between expected and found output, by kind.

    ``wrong`` counts state that differs: ranks of records, entries of stores, totals of windows.
    """

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    phantom: int = 0
    wrong: int = 0

    def __sub__(self, earlier: "Verdict") -> "Verdict":
        before = asdict(earlier)
        return Verdict(**{kind: count - before[kind] for kind, count in asdict(self).items()})


CLEAN = Verdict()


def compare(
    expected: Iterable[Hashable], found: Mapping[Any, Sequence[Hashable]], *, wrong: int = 0
) -> Verdict:
    """Compare records that were found, by key, with those that are expected.

    Expected records are unique. Their order counts among the records of one key: each neighbour
    that comes too early is one that is reordered.
    """
    positions = {record: position for position, record in enumerate(expected)}
    counts = Counter(record for records in found.values() for record in records)
    orders = ([positions[one] for one in records if one in positions] for records in found.values())
    return Verdict(
        lost=len(positions.keys() - counts.keys()),
        duplicated=sum(count - 1 for record, count in counts.items() if record in positions),
        reordered=sum(later < one for order in orders for one, later in pairwise(order)),
        phantom=sum(count for record, count in counts.items() if record not in positions),
        wrong=wrong,
    )


def verdict_row(verdict: Verdict, **details: Any) -> Row:
    """Return a row of a report: details first, then the verdict."""
    return {**details, **asdict(verdict), "clean": verdict == CLEAN}


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a run, among them ``--json``, which every run has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    return parser.parse_args(arguments)


def run_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Call ``main`` with the arguments of this program, and exit with the status it returns.

    SIGTERM exits in order, which ends the children. JVMs start with quick settings unless the
    environment has others.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name, value in _JVM_DEFAULTS.items():
        os.environ.setdefault(name, value)
    sys.exit(main(sys.argv[1:]))


def report(
    name: str,
    sections: Iterable[tuple[str, str, Iterable[Row]]],
    *,
    as_json: bool,
    **about: object,
) -> int:
    """Print sections of rows: rows as they come (JSON), or one table for each section.

    A section is a name, a title and its rows. Return the exit status: 1 if a row is not clean.
    """
    progress = Progress()
    printed = Report(name, progress, as_json=as_json)
    here = machine(**{key: str(value) for key, value in about.items()})
    printed.section("machine", "Machine", _columns(here), [here])
    bad = 0
    for section, title, rows in sections:
        made = []
        for row in rows:
            made.append(row)
            progress(" ".join(value for value in row.values() if isinstance(value, str)))
            if as_json:
                printed.section(section, title, [], [row])
        differing = sum(not row.get("clean", True) for row in made)
        bad += differing
        if not as_json:
            note = f"NOT CLEAN: {differing} rows" if differing else "clean"
            printed.section(section, title, _columns(made[0]), made, [note])
    return 1 if bad else 0


def _columns(row: Row) -> list[Column]:
    return [
        Column(name, name.replace("_", " "), str if isinstance(value, str | bool) else figure)
        for name, value in row.items()
    ]
