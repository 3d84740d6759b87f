"""Records on their way into the log, and as they come out of it.

A key and a value are bytes or None: what they mean is the business of the serdes above. A value
of None is a *tombstone*: in a compacted topic it says that its key is gone. Timestamps are
milliseconds since 1970. Headers are pairs of a name and bytes (or None); a name may occur twice.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from thulawa.brokers.embedded.errors import InvalidRecord
from thulawa.core.types import Headers

__all__ = [
    "LARGEST_RECORD",
    "ConsumerRecord",
    "HeadersLike",
    "ProducerRecord",
    "as_headers",
    "check_record",
]

HeadersLike: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

LARGEST_RECORD = 16 * 1024 * 1024  # key and value together
_LATEST = 2**63 - 1
_LONGEST_HEADER_NAME = 2**16 - 1


class ProducerRecord(NamedTuple):
    """A record to be written. What is None is chosen by the log: now, and the key's partition."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None


class ConsumerRecord(NamedTuple):
    """A record that was read, and where it stands."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def as_headers(headers: HeadersLike) -> Headers:
    """Give headers the one form in which records carry them."""
    return tuple(headers.items() if isinstance(headers, Mapping) else headers)


def check_record(record: ProducerRecord, topic: str) -> int:
    """Refuse what the log cannot hold, before it is written; return its size with headers."""
    key, value, headers, timestamp, _ = record
    if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp <= _LATEST):
        raise InvalidRecord(f"timestamp {timestamp!r} is not an int in [0, 2**63)", topic=topic)
    header_size = _check_headers(headers, topic) if headers else 0
    size = _size(key, "key", topic) + _size(value, "value", topic)
    if size > LARGEST_RECORD:
        reason = f"key and value have {size:,} bytes, more than {LARGEST_RECORD:,}"
        raise InvalidRecord(reason, topic=topic)
    return size + header_size


def _size(data: bytes | None, what: str, topic: str) -> int:
    if data is None:
        return 0
    # exactly bytes: a bytearray could still change between send() and flush()
    if type(data) is not bytes:
        raise InvalidRecord(f"the {what} is {type(data).__name__}, not bytes or None", topic=topic)
    return len(data)


def _check_headers(headers: Headers, topic: str) -> int:
    size = 0
    for name, value in headers:
        if type(name) is not str or len(name.encode()) > _LONGEST_HEADER_NAME:
            raise InvalidRecord("a header's name is a str of at most 65,535 bytes", topic=topic)
        size += len(name.encode()) + _size(value, f"header {name[:40]!r}", topic)
    if size > LARGEST_RECORD:
        raise InvalidRecord(f"the headers have more than {LARGEST_RECORD:,} bytes", topic=topic)
    return size
