"""How much memory the processes of a job take, by kind."""

import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["KINDS", "grown", "resident_mib"]

# MiB by which the largest of a kind may outgrow its earlier largest. A JVM takes the heap that it
# may have in its own time: Spark's 1 GiB, the broker's 1 GiB.
KINDS = {"driver": 32.0, "worker": 32.0, "jvm": 300.0, "broker": 300.0}


class Watched(Protocol):
    """What there is to look at."""

    @property
    def processes(self) -> tuple[int, tuple[int, ...]]:
        """Give the driver's process, and those of the broker."""


def resident_mib(watched: Watched) -> dict[str, float]:
    """Give the size of the driver, of its JVM, of its largest Python worker and of the broker."""
    driver, brokers = watched.processes
    table = _table()
    found = dict.fromkeys(KINDS, 0.0)
    for pid, (_, size, command) in table.items():
        if pid in brokers:
            kind = "broker"
        elif pid == driver:
            kind = "driver"
        elif not _descends(pid, driver, table):
            continue
        else:
            kind = "jvm" if command.endswith("java") else "worker"
        found[kind] = max(found[kind], round(size / 1024, 1))
    return found


def grown(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Give by how much each kind's largest of the last third exceeds that of the third before."""
    third = max(1, len(samples) // 3)
    middle, last = samples[-2 * third : -third] or samples[:1], samples[-third:]
    return {
        kind: round(max(one[kind] for one in last) - max(one[kind] for one in middle), 1)
        for kind in KINDS
    }


def _table() -> dict[int, tuple[int, int, str]]:
    """Give each process's parent, size in KiB and program."""
    shown = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,rss=,comm="],  # noqa: S607 wherever it is
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = (line.split(None, 3) for line in shown.stdout.splitlines())
    return {int(pid): (int(parent), int(size), name) for pid, parent, size, name in rows}


def _descends(pid: int, ancestor: int, table: dict[int, tuple[int, int, str]]) -> bool:
    while pid in table and pid != ancestor:
        pid = table[pid][0]
    return pid == ancestor
