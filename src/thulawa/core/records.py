"""Records as users and operators see them: key, value, time, headers, and where they are from.

Inside a task a record travels as four arguments, not as an object: a node that changes the
value alone then allocates nothing. `Record` is what the Processor API hands to users.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from thulawa.core.types import Headers as Headers  # noqa: PLC0414 for users of records

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")
V1 = TypeVar("V1")

LAST_TIMESTAMP = 2**63 - 1  # what eight bytes can hold
LAST_OUTPUT_TIMESTAMP = 253_402_300_799_999  # the year 9999: what any reader can show


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """A key, a value, a timestamp in milliseconds and headers.

    >>> Record("k", 1, 5).with_value("one")
    Record(key='k', value='one', timestamp=5, headers=())
    """

    key: K
    value: V
    timestamp: int = 0
    headers: Headers = ()

    def with_key(self, key: K1) -> "Record[K1, V]":
        """Return the same record under another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V1) -> "Record[K, V1]":
        """Return the same record with another value."""
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> "Record[K, V]":
        """Return the same record at another time."""
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Headers) -> "Record[K, V]":
        """Return the same record with other headers."""
        return replace(self, headers=headers)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where the record being processed came from."""

    topic: str
    partition: int
    offset: int


class Window(NamedTuple):
    """A stretch of time in milliseconds; whether its end belongs to it depends on its kind."""

    start: int
    end: int


class Windowed(NamedTuple, Generic[K]):
    """A key within a window: the key of a windowed table."""

    key: K
    window: Window


class Change(NamedTuple):
    """An update of a table: the new value, the one before, and whether it is the latest.

    Only an update of a versioned table that arrives out of order is not the latest.
    """

    new: Any
    old: Any
    latest: bool = True


# For the hottest path: what Change(...) does, without a call into Python.
make_change = partial(tuple.__new__, Change)
