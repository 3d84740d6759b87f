"""Resident memory of the processes of a job, by kind."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tests.chaos.harness import ProcessInfo, process_table

__all__ = ["KINDS", "MOST_GROWN", "grown", "is_flat", "resident_mib"]

KINDS = ("driver", "worker", "jvm", "broker")
# MiB by which the largest Python process of a kind may grow. A JVM fills its heap (1 GiB) at its
# own pace, so that its bound is absolute: the heap and what it needs besides.
MOST_GROWN = {"driver": 64.0, "worker": 64.0}
MOST_HELD = {"jvm": 1_700.0, "broker": 1_700.0}


class Watched(Protocol):
    """A job whose memory is measured."""

    @property
    def processes(self) -> tuple[int, tuple[int, ...]]:
        """Process ids of the driver and of the broker."""


def resident_mib(watched: Watched) -> dict[str, float]:
    """Return the size of the driver, its JVM, its largest Python worker and the broker."""
    driver, brokers = watched.processes
    table = process_table()
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
            continue  # a fork of the JVM that has not yet executed its program
        found[kind] = max(found[kind], round(size / 1024, 1))
    return found


def is_flat(samples: Sequence[dict[str, Any]]) -> bool:
    """Return whether memory stays within its bounds."""
    growth = grown(samples)
    return all(growth[kind] <= limit for kind, limit in MOST_GROWN.items()) and all(
        one[kind] <= limit for kind, limit in MOST_HELD.items() for one in samples
    )


def grown(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return by how much the maximum of the last third exceeds that of the third before."""
    third = max(1, len(samples) // 3)
    middle, last = samples[-2 * third : -third] or samples[:1], samples[-third:]
    return {
        kind: round(max(one[kind] for one in last) - max(one[kind] for one in middle), 1)
        for kind in MOST_GROWN
    }


def _descends(pid: int, ancestor: int, table: Mapping[int, ProcessInfo]) -> bool:
    while pid in table and pid != ancestor:
        pid = table[pid].parent
    return pid == ancestor
