"""Which partitions the records of one writer go to.

A key has its place. Records without a key stick to one partition while a batch is filled and go
on to the next with the next batch: batches stay large, and all partitions get their share.
"""

from collections.abc import Sequence

from thulawa.core.partitioning import partition_of

__all__ = ["Partitioner"]


class Partitioner:
    """Chooses partitions for one writer; ``first`` is where its keyless records start."""

    __slots__ = ("_turn",)

    def __init__(self, first: int) -> None:
        self._turn = first

    def choose(self, keys: Sequence[bytes | None], partitions: int) -> list[int]:
        """Give the partition of each record of a batch."""
        turn = self._turn % partitions
        homes = {key: turn if key is None else partition_of(key, partitions) for key in set(keys)}
        return [homes[key] for key in keys]

    def next_batch(self) -> None:
        """Send the keyless records that follow to the next partition."""
        self._turn += 1
