"""Who counts what: partitions divided among the instances of one job.

Counts are exact whoever counts what (see `changelog`), so dividing partitions is about work alone:
when two instances have one partition for a moment, both count it and one gets through; when nobody
has it, its messages wait. So only those share who would write the same counts.

On the embedded log a lease is a lock on a file beside the log, held by the kernel: it goes with its
process, however that ends, and needs no clock. On Kafka it is membership in a consumer group.
"""

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias
from uuid import uuid4

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.membership import Membership
from thulawa.core.types import TopicPartition

__all__ = ["Fixed", "GroupMembership", "Leases", "Owner", "Partitions"]

Partitions: TypeAlias = Mapping[str, Iterable[int]]

_MEMBER = "@"  # no topic's name begins with it


class Owner(Protocol):
    """Tells which partitions are this instance's."""

    @property
    def joined(self) -> bool:
        """Whether it is settled what this instance has to begin with, be it nothing."""

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Give those of the partitions that are this instance's now; asked before each batch."""

    def close(self) -> None:
        """Give them up."""


class Fixed:
    """The partitions that were named; all of them where none were."""

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
        """Give those that were named."""
        return set(places) if self._chosen is None else set(places) & self._chosen

    def close(self) -> None:
        """Hold nothing."""


class Leases:
    """Locks on files in a folder of those who count the same partitions."""

    joined = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{_MEMBER}{uuid4().hex}"
        self._member = self._joined()
        self._held: dict[TopicPartition, int] = {}

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Take as many partitions as are this instance's share, and give up what is more."""
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
        """Give up everything."""
        for place in list(self._held):
            self._release(place)
        with suppress(FileNotFoundError):
            (self._folder / self._name).unlink()
        os.close(self._member)

    def _share(self, count: int) -> int:
        """Give how many of so many partitions are this instance's, by its place among all."""
        members = sorted({*self._members(), self._name})
        rank = members.index(self._name)
        return count // len(members) + (rank < count % len(members))

    def _members(self) -> list[str]:
        if not (self._folder / self._name).exists():  # taken for dead in the moment it was made
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
        assert lock is not None, "nobody else has this name"
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
        """Whether the group has given this instance its first partitions, perhaps none."""
        return self._membership.joined

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those that the group has assigned to this instance."""
        return {TopicPartition(*one) for one in self._membership.assigned()} & set(places)

    def close(self) -> None:
        """Leave the group."""
        self._membership.close()


def _locked(path: Path) -> int | None:
    """Lock a file, made if need be; None where somebody else has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
