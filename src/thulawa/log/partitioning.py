"""Which partition a record goes to: Kafka's default rule, bit for bit.

A key goes to ``(murmur2(key) & 0x7fffffff) % partitions``, so that a topic written here and one
written by a Kafka client put the same key in the same partition. Records without a key stick to
one partition while a batch is filled and go on to the next with the next batch: batches stay
large, and all partitions get their share.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import iter_unpack

__all__ = ["Partitioner", "murmur2", "partition_of"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SHORT = 64


def murmur2(data: bytes) -> int:
    """Hash as ``org.apache.kafka.common.utils.Utils.murmur2`` does; the sign is left off.

    >>> murmur2(b"foobar") - 2**32
    -790332482
    """
    whole = len(data) & ~3
    hashed = _SEED ^ len(data)
    for (word,) in iter_unpack("<I", data[:whole]):
        mixed = word * _M & _MASK
        mixed ^= mixed >> 24
        hashed = (hashed * _M & _MASK) ^ (mixed * _M & _MASK)
    if whole != len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


_remembered = lru_cache(maxsize=65_536)(murmur2)


def partition_of(key: bytes, partitions: int) -> int:
    """Give the partition of a key."""
    # the cache must not hold on to huge keys
    return (_remembered if len(key) <= _SHORT else murmur2)(key) % 2**31 % partitions


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
