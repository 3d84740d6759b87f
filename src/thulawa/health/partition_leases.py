"""Leases that divide partitions among the instances of one application.

Counts are exact whichever instance counts a partition (see `changelog`), so leases only divide
work: while two instances have the same partition, both count it and the write of one succeeds;
while none has it, its messages wait. Instances that would write different counts do not share
leases.

On the embedded log a lease is a lock on a file beside the log, held by the kernel: it ends with its
process, in whatever way, and needs no clock. On Kafka it is membership in a consumer group.
"""

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias
from uuid import uuid4

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import Membership
from thulawa.core.types import TopicPartition

__all__ = ["Fixed", "GroupMembership", "Leases", "Owner", "Partitions"]

Partitions: TypeAlias = Mapping[str, Iterable[int]]

_MEMBER = "@"  # not allowed in names of topics


class Owner(Protocol):
    """Decides which partitions belong to this instance."""

    @property
    def joined(self) -> bool:
        """Return whether the first assignment has been made, even an empty one."""

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that belong to this instance now; called before each round."""

    def close(self) -> None:
        """Release the partitions."""


class Fixed:
    """A fixed set of partitions, or all of them."""

    joined = True

    def __init__(self, partitions: Partitions | None = None) -> None:
        self._chosen = (
            None
            if partitions is None
            else {
                TopicPartition(topic, number)
                for topic, ones in partitions.items()
                for number in ones
            }
        )

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the fixed set."""
        return set(places) if self._chosen is None else set(places) & self._chosen

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class Leases:
    """File-lock leases, one per partition, in a folder that the instances share."""

    joined = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{_MEMBER}{uuid4().hex}"
        self._member = self._joined()
        self._held: dict[TopicPartition, int] = {}

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Acquire leases up to this instance's share, and release those beyond it."""
        wanted = sorted(places)
        share = self._share(len(wanted))
        for place in set(self._held) - set(wanted):
            self._release(place)
        while len(self._held) > share:
            self._release(max(self._held))
        for place in wanted:
            if len(self._held) >= share:
                break
            if place not in self._held:
                self._try(place)
        return set(self._held)

    def close(self) -> None:
        """Release all leases and leave."""
        for place in list(self._held):
            self._release(place)
        with suppress(FileNotFoundError):
            (self._folder / self._name).unlink()
        os.close(self._member)

    def _share(self, count: int) -> int:
        """Return how many of ``count`` partitions this instance may have, by its rank."""
        members = sorted({*self._members(), self._name})
        rank = members.index(self._name)
        return count // len(members) + (rank < count % len(members))

    def _members(self) -> list[str]:
        if not (self._folder / self._name).exists():  # removed between its creation and its lock
            os.close(self._member)
            self._member = self._joined()
        alive = []
        for path in self._folder.glob(f"{_MEMBER}*"):
            if path.name == self._name or (lock := _locked(path)) is None:
                alive.append(path.name)
            else:
                with suppress(FileNotFoundError):
                    path.unlink()
                os.close(lock)
        return alive

    def _joined(self) -> int:
        lock = _locked(self._folder / self._name)
        assert lock is not None, "the name is unique"
        return lock

    def _try(self, place: TopicPartition) -> None:
        lock = _locked(self._folder / f"{place.topic}-{place.partition}")
        if lock is not None:
            self._held[place] = lock

    def _release(self, place: TopicPartition) -> None:
        os.close(self._held.pop(place))


class GroupMembership:
    """Partitions divided by a consumer group of Kafka."""

    def __init__(self, connection: Connection, group: str, topics: Sequence[str]) -> None:
        self._membership = Membership(connection, group, topics)

    @property
    def joined(self) -> bool:
        """Return whether the group has made its first assignment, even an empty one."""
        return self._membership.joined

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that the group has assigned to this instance."""
        return {TopicPartition(*one) for one in self._membership.assigned()} & set(places)

    def close(self) -> None:
        """Leave the group."""
        self._membership.close()


def _locked(path: Path) -> int | None:
    """Create and lock a file; return its descriptor, or None if another process has the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
