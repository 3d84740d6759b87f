"""How much memory the processes of a job take, by kind."""

import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["KINDS", "MOST_GROWN", "grown", "is_flat", "resident_mib"]

KINDS = ("driver", "worker", "jvm", "broker")
# MiB by which the largest Python process of a kind may outgrow its earlier largest. A JVM fills the
# heap that it may have (1 GiB) in its own time, so it is held to that and what it needs besides.
MOST_GROWN = {"driver": 64.0, "worker": 64.0}
MOST_HELD = {"jvm": 1_700.0, "broker": 1_700.0}


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
        elif command.endswith("java"):
            kind = "jvm"
        elif "python" in command:
            kind = "worker"
        else:
            continue  # a JVM that is about to start a process is seen twice, under another name
        found[kind] = max(found[kind], round(size / 1024, 1))
    return found


def is_flat(samples: Sequence[dict[str, Any]]) -> bool:
    """Tell whether nothing grows that should not."""
    growth = grown(samples)
    return all(growth[kind] <= limit for kind, limit in MOST_GROWN.items()) and all(
        one[kind] <= limit for kind, limit in MOST_HELD.items() for one in samples
    )


def grown(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Give by how much each kind's largest of the last third exceeds that of the third before."""
    third = max(1, len(samples) // 3)
    middle, last = samples[-2 * third : -third] or samples[:1], samples[-third:]
    return {
        kind: round(max(one[kind] for one in last) - max(one[kind] for one in middle), 1)
        for kind in MOST_GROWN
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
