"""Record batches: many records as one blob, the unit in which the log is stored.

A row of SQLite for each record costs about 4 µs to insert, nearly all of it under the write lock.
Packed by the thousand it costs half of that, most of it before the lock is taken, and columns are
read twice as fast (`make bench-log`). The price is that compaction rewrites blobs.

Little-endian, columns one after the other::

    version u8 | flags u8 | records u32 | length u32 | crc32 u32
    [distance of each offset from the first, i64 each, when there are gaps]
    timestamps, i64 each
    lengths of keys, values [and headers], i32 each, -1 for None
    keys | values [| headers]

The checksum covers everything else, so that damage is an error and never a wrong record. Offsets
are not stored: a batch is packed before its offsets are assigned.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import Any, NamedTuple

from thulawa.core.types import Headers
from thulawa.errors import DamagedLog

_VERSION = 1
_GAPS, _HEADERS = 1, 2
_HEAD = struct.Struct("<BBIII")
_CHECKED = struct.Struct("<BBII")  # the head without the checksum
_HEADER = struct.Struct("<Hi")  # length of a header's name, of its value


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one partition, one sequence for each of their parts."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self) -> Iterator[tuple[int, int, bytes | None, bytes | None, Any]]:
        """Yield the records one by one."""
        return zip(self.offsets, self.timestamps, self.keys, self.values, self.headers, strict=True)

    def between(self, start: int, end: int) -> "Columns":
        """Return the records with offsets in [start, end)."""
        first, last = bisect_left(self.offsets, start), bisect_left(self.offsets, end)
        if first == 0 and last == len(self.offsets):
            return self
        return Columns(*(column[first:last] for column in self._columns()))

    def select(self, wanted: Sequence[bool]) -> "Columns":
        """Return the records that are marked."""
        return Columns(*(tuple(compress(column, wanted)) for column in self._columns()))

    def joined(self, other: "Columns") -> "Columns":
        """Return these records, followed by the others."""
        pairs = zip(self._columns(), other._columns(), strict=True)  # noqa: SLF001 same class
        return Columns(*((*one, *two) for one, two in pairs))

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.offsets, self.timestamps, self.keys, self.values, self.headers


def pack(columns: Columns) -> bytes:
    """Return records as a blob, with the gaps between offsets but not the first offset."""
    count, flags = len(columns), 0
    sections: list[bytes] = []
    first = columns.offsets[0]
    if columns.offsets[-1] - first != count - 1:
        flags |= _GAPS
        sections.append(struct.pack(f"<{count}q", *(offset - first for offset in columns.offsets)))
    sections.append(struct.pack(f"<{count}q", *columns.timestamps))
    blobs: list[Sequence[bytes | None]] = [columns.keys, columns.values]
    if any(columns.headers):
        flags |= _HEADERS
        blobs.append([_pack_headers(headers) for headers in columns.headers])
    sections.extend(struct.pack(f"<{count}i", *_lengths(column)) for column in blobs)
    sections.extend(map(_joined, blobs))
    body = b"".join(sections)
    checksum = zlib.crc32(body, zlib.crc32(_CHECKED.pack(_VERSION, flags, count, len(body))))
    return _HEAD.pack(_VERSION, flags, count, len(body), checksum) + body


class Layout(NamedTuple):
    """Where the sections of a blob begin; ``gaps`` is -1 where its offsets have none."""

    records: int
    gaps: int
    timestamps: int
    lengths: int
    columns: int
    data: int


def layout(blob: bytes) -> Layout:
    """Return where the sections of a blob begin; raise `DamagedLog` if it is damaged."""
    flags, count = _checked_head(blob)
    at = _HEAD.size
    timestamps = at + 8 * count if flags & _GAPS else at
    lengths = timestamps + 8 * count
    columns = 3 if flags & _HEADERS else 2
    gaps = at if flags & _GAPS else -1
    return Layout(count, gaps, timestamps, lengths, columns, lengths + 4 * columns * count)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A packed batch that has no offsets yet."""

    count: int
    newest: int
    body: bytes


def described(body: bytes) -> PackedBatch:
    """Return a packed batch with its count and highest timestamp; raise `DamagedLog` if damaged."""
    found = layout(body)
    return PackedBatch(found.records, _newest(body, found), body)


def span(blob: bytes, first: int) -> tuple[int, int]:
    """Return the offset after the last record of a blob, and its highest timestamp."""
    found = layout(blob)
    last = found.records - 1
    if found.gaps >= 0:
        (last,) = struct.unpack_from("<q", blob, found.gaps + 8 * last)
    return first + last + 1, _newest(blob, found)


def _newest(blob: bytes, found: Layout) -> int:
    newest: int = max(struct.unpack_from(f"<{found.records}q", blob, found.timestamps))
    return newest


def unpack(blob: bytes, first: int) -> Columns:
    """Unpack a blob whose first record has offset ``first``; raise `DamagedLog` if damaged."""
    count, gaps, at, lengths_at, columns, data = layout(blob)
    offsets: Sequence[int] = range(first, first + count)
    if gaps >= 0:
        offsets = [first + gap for gap in struct.unpack_from(f"<{count}q", blob, gaps)]
    timestamps = struct.unpack_from(f"<{count}q", blob, at)
    lengths = struct.unpack_from(f"<{columns * count}i", blob, lengths_at)
    parts = _cut(blob, data, lengths)
    headers: Sequence[Headers] = ((),) * count
    if len(parts) > 2 * count:
        headers = [_unpack_headers(part or b"") for part in parts[2 * count :]]
    return Columns(offsets, timestamps, parts[:count], parts[count : 2 * count], headers)


def _checked_head(blob: bytes) -> tuple[int, int]:
    if len(blob) < _HEAD.size:
        raise DamagedLog("a record batch is cut off")
    version, flags, count, length, checksum = _HEAD.unpack_from(blob)
    if version != _VERSION:
        raise DamagedLog(f"a record batch is of the unknown version {version}")
    if len(blob) != _HEAD.size + length:
        raise DamagedLog(f"a record batch has {len(blob)} bytes instead of {_HEAD.size + length}")
    checked = zlib.crc32(_CHECKED.pack(version, flags, count, length))
    if zlib.crc32(memoryview(blob)[_HEAD.size :], checked) != checksum:
        raise DamagedLog("a record batch fails its checksum")
    return flags, count


def _lengths(column: Sequence[bytes | None]) -> Sequence[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]
    except TypeError:  # None is among them
        return [-1 if data is None else len(data) for data in column]


def _joined(column: Sequence[bytes | None]) -> bytes:
    try:
        return b"".join(column)  # type: ignore[arg-type]
    except TypeError:
        return b"".join(filter(None, column))


def _cut(blob: bytes, at: int, lengths: Sequence[int]) -> list[bytes | None]:
    if -1 not in lengths:
        return [blob[start:end] for start, end in pairwise(accumulate(lengths, initial=at))]
    ends = accumulate((max(length, 0) for length in lengths), initial=at)
    return [
        None if length < 0 else blob[start:end]
        for length, (start, end) in zip(lengths, pairwise(ends), strict=True)
    ]


def _pack_headers(headers: Headers) -> bytes:
    parts = []
    for name, value in headers:
        text = name.encode()
        parts += [_HEADER.pack(len(text), -1 if value is None else len(value)), text, value or b""]
    return b"".join(parts)


def _unpack_headers(blob: bytes) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(blob):
        name, value = _HEADER.unpack_from(blob, at)
        middle = at + _HEADER.size + name
        at = middle + max(value, 0)
        text = blob[middle - name : middle].decode()
        headers.append((text, None if value < 0 else blob[middle:at]))
    return tuple(headers)
