"""A count and its form in the topic.

Key ``{"topic":"tx","partition":0,"window":1501273548000,"status":"valid"}``, value
``{"value":4,"offset":5}``: of the messages of this partition before offset 5, four belong to this
cell, and the last of them has offset 4. As with Kafka's committed offsets, the offset is the next
to read. A tombstone means that the window has expired.
"""

from typing import NamedTuple, TypedDict

import msgspec

from thulawa.errors import StateError


class Cell(NamedTuple):
    """Messages that are counted together; ``window`` is its start in milliseconds.

    ``partition`` is None where counts are merged over partitions.
    """

    topic: str
    partition: int | None
    window: int
    status: str


class Count(NamedTuple):
    """The number of messages of a cell before an offset; None: the window has expired."""

    cell: Cell
    value: int | None
    offset: int


class _Key(TypedDict):
    topic: str
    partition: int
    window: int
    status: str


class _Value(TypedDict):
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
    return _encoder.encode(cell._asdict())


def encode_value(count: Count) -> bytes | None:
    """Return a count as the topic's value; None, a tombstone, for an expired window.

    >>> encode_value(Count(Cell("tx", 0, 1501273548000, "valid"), 4, 5))
    b'{"value":4,"offset":5}'
    """
    if count.value is None:
        return None
    return _encoder.encode({"value": count.value, "offset": count.offset})


def decode(key: bytes, value: bytes | None) -> Count:
    """Return the count in a record of the topic; raise `StateError` if it is not a count."""
    try:
        cell = Cell(**_keys.decode(key))
        return Count(cell, None, 0) if value is None else Count(cell, **_values.decode(value))
    except msgspec.DecodeError as error:
        raise StateError(
            f"the record with key {key[:200]!r} is not a count ({error}); the output topic of "
            "counts must not be used for anything else"
        ) from error
