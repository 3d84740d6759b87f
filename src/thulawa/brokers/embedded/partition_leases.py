"""Leases that divide the partitions of topics among the members of a group.

A lease is a lock on a file beside the log, held by the kernel: it ends with its process, in
whatever way, and needs no clock. While members join and leave, two of them may have the same
partition for a moment, or none, as in a consumer group of Kafka.
"""

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

from thulawa.core.types import TopicPartition

_MEMBER = "@"  # not allowed in names of topics


class PartitionLeases:
    """File-lock leases, one per partition, in a folder that the members share."""

    joined = True

    def __init__(self, folder: Path, partitions: Callable[[], Iterable[TopicPartition]]) -> None:
        self._folder = folder
        self._partitions = partitions
        folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{_MEMBER}{uuid4().hex}"
        self._member = self._join()
        self._held: dict[TopicPartition, int] = {}

    def assigned(self) -> set[TopicPartition]:
        """Acquire leases up to this member's share, and release those beyond it."""
        wanted = sorted(self._partitions())
        share = self._share(len(wanted))
        for partition in set(self._held) - set(wanted):
            self._release(partition)
        while len(self._held) > share:
            self._release(max(self._held))
        for partition in wanted:
            if len(self._held) >= share:
                break
            if partition not in self._held:
                lock = _lock(self._folder / f"{partition.topic}-{partition.partition}")
                if lock is not None:
                    self._held[partition] = lock
        return set(self._held)

    def close(self) -> None:
        """Release all leases and leave."""
        for partition in list(self._held):
            self._release(partition)
        (self._folder / self._name).unlink(missing_ok=True)
        os.close(self._member)

    def _share(self, count: int) -> int:
        """Return how many of ``count`` partitions this member may have, by its rank."""
        members = sorted({*self._members(), self._name})
        rank = members.index(self._name)
        return count // len(members) + (rank < count % len(members))

    def _members(self) -> list[str]:
        if not (self._folder / self._name).exists():  # removed between its creation and its lock
            os.close(self._member)
            self._member = self._join()
        alive = []
        for path in self._folder.glob(f"{_MEMBER}*"):
            if path.name == self._name or (lock := _lock(path)) is None:
                alive.append(path.name)
            else:
                path.unlink(missing_ok=True)
                os.close(lock)
        return alive

    def _join(self) -> int:
        lock = _lock(self._folder / self._name)
        assert lock is not None, "the name is unique"
        return lock

    def _release(self, partition: TopicPartition) -> None:
        os.close(self._held.pop(partition))


def _lock(path: Path) -> int | None:
    """Create and lock a file; return its descriptor, or None if another process has the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
