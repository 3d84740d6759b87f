"""Records as they are written to a broker and as they are read from it.

A key and a value are bytes or None: serdes give them a meaning. A value of None is a *tombstone*:
in a compacted topic it deletes its key. Timestamps are milliseconds since 1970.
"""

from typing import NamedTuple

from thulawa.core.types import Headers

__all__ = ["ConsumerRecord", "ProducerRecord"]


class ProducerRecord(NamedTuple):
    """A record to be written. The broker chooses what is None: now, and the key's partition."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class ConsumerRecord(NamedTuple):
    """A record that was read, with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
