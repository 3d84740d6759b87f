"""A count and its form in the topic.

Key ``{"topic":"tx","partition":0,"window":1501273548000,"status":"valid"}``, value
``{"value":4,"offset":5}``: of the messages of this partition before offset 5, four belong to this
cell, and the last of them has offset 4. As with Kafka's committed offsets, the offset is the next
to read. A tombstone means that the window has expired.
"""

from typing import NamedTuple

import msgspec

from thulawa.core.types import TopicPartition
from thulawa.errors import StateError

__all__ = ["Cell", "Count", "decode", "encode_key", "encode_value"]


class Cell(NamedTuple):
    """Messages that are counted together; ``window`` is its start in milliseconds.

    ``partition`` is None where counts are merged over partitions.
    """

    topic: str
    partition: int | None
    window: int
    status: str

    @property
    def place(self) -> TopicPartition:
        """Return the partition of the cell."""
        assert self.partition is not None, "a merged cell has no partition"
        return TopicPartition(self.topic, self.partition)


class Count(NamedTuple):
    """The number of messages of a cell before an offset; None: the window has expired."""

    cell: Cell
    value: int | None
    offset: int


class _Key(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    window: int
    status: str


class _Value(msgspec.Struct, frozen=True):
    value: int
    offset: int


_keys = msgspec.json.Decoder(_Key)
_values = msgspec.json.Decoder(_Value)
_encoder = msgspec.json.Encoder()


def encode_key(cell: Cell) -> bytes:
    """Return a cell as the topic's key; equal cells have equal bytes, which compaction needs.

    >>> encode_key(Cell("tx", 0, 1501273548000, "valid"))
    b'{"topic":"tx","partition":0,"window":1501273548000,"status":"valid"}'
    """
    topic, partition, window, status = cell
    return _encoder.encode(_Key(topic, partition or 0, window, status))


def encode_value(count: Count) -> bytes | None:
    """Return a count as the topic's value; None, a tombstone, for an expired window.

    >>> encode_value(Count(Cell("tx", 0, 1501273548000, "valid"), 4, 5))
    b'{"value":4,"offset":5}'
    """
    return None if count.value is None else _encoder.encode(_Value(count.value, count.offset))


def decode(key: bytes, value: bytes | None) -> Count:
    """Return the count in a record of the topic; raise `StateError` if it is not a count."""
    try:
        found = _keys.decode(key)
        cell = Cell(found.topic, found.partition, found.window, found.status)
        if value is None:
            return Count(cell, None, 0)
        total = _values.decode(value)
    except msgspec.DecodeError as error:
        raise StateError(
            f"the record with key {key[:200]!r} is not a count ({error}); the output topic of "
            "counts must not be used for anything else"
        ) from error
    return Count(cell, total.value, total.offset)
