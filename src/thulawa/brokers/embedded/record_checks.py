"""Check records before the log stores them, and convert headers to the form it stores."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from thulawa.core.types import Headers, ProducerRecord
from thulawa.errors import InvalidRecord, RecordTooLarge

HeadersLike: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

LARGEST_RECORD = 16 * 1024 * 1024  # key and value together
_LATEST = 2**63 - 1
_LONGEST_HEADER_NAME = 2**16 - 1


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
        raise RecordTooLarge(reason, topic=topic)
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
        raise RecordTooLarge(f"the headers have more than {LARGEST_RECORD:,} bytes", topic=topic)
    return size
