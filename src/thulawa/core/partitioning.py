"""Kafka's default partitioner, bit for bit.

A key goes to ``(murmur2(key) & 0x7fffffff) % partitions``, so that a topic written here and one
written by a Kafka client put the same key in the same partition.
"""

from functools import lru_cache
from struct import iter_unpack

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SHORT = 64


def murmur2(data: bytes) -> int:
    """Return the hash of ``org.apache.kafka.common.utils.Utils.murmur2``, as unsigned.

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


_cached_murmur2 = lru_cache(maxsize=65_536)(murmur2)


def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition of a serialized key; partition 0 without a key.

    >>> partition_of(b"a", 1), partition_of(None, 8), partition_of(b"foobar", 8)
    (0, 0, 6)
    """
    if partitions == 1 or key is None:
        return 0
    # huge keys would fill the memory from the cache
    return (_cached_murmur2 if len(key) <= _SHORT else murmur2)(key) % 2**31 % partitions
