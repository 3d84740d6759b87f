"""Columnar encoding of plain data, for state and for shuffled records.

The format holds data only: nothing in it can name code to run. Unlike plain MessagePack, it
preserves tuples and the named tuples of the library. Values are encoded in columns: a column of
numbers or text is one array, a column of pairs is two columns. A million entries therefore take a
handful of calls into C, and only values of other types are encoded one by one.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from math import nan
from operator import itemgetter
from typing import Any
from uuid import UUID
from zlib import crc32

import msgspec
import pyarrow as pa

from thulawa.core.records import Change, Window, Windowed
from thulawa.core.serdes import Serde
from thulawa.errors import SerializationError, StateError

_SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_ALWAYS_ENCODABLE = _SCALARS - {str}  # whatever their value
MAX_DEPTH = 200  # of nested lists, tuples, dicts and sets
_ANY, _SCALAR, _TUPLE = 0, 1, 2
_FIRST_CHUNK = 4_096  # values in the first chunk; later ones adapt to the size

# --- frames: magic and version, compression, length and checksum of the content
_FRAME = struct.Struct("<3sBII")
_MAGIC = b"TH1"
_WORTH_COMPRESSING = 512
_MAX_LENGTH = 2**31

# --- extension types, for single values that MessagePack does not know
_BIG, _DICT, _SET, _FROZENSET, _DATETIME, _DATE, _DURATION, _DECIMAL, _UUID = range(1, 10)
_TUPLES = 32  # from here on: tuples, then the named tuples that were registered
_BY_SERDE = 127

_makers: dict[int, Callable[[Iterable[Any]], Any]] = {0: tuple}
_numbers: dict[type, int] = {tuple: 0}


def register(kind: type, number: int) -> None:
    """Register a named tuple of the library under a number, which must never change."""
    _numbers[kind] = number
    _makers[number] = kind._make  # type: ignore[attr-defined]


register(Window, 1)
register(Windowed, 2)
register(Change, 3)


class ColumnCodec:
    """Encode and decode lists of values. Values that are not plain data go through ``serde``.

    A ``canonical`` codec encodes dicts and sets independently of the order of their items, and
    every NaN alike.

    >>> codec = ColumnCodec()
    >>> codec.decode(codec.encode([("a", 1), ("b", None), {"c": [2, (3,)]}]))
    [('a', 1), ('b', None), {'c': [2, (3,)]}]
    """

    def __init__(self, serde: Serde[Any] | None = None, *, canonical: bool = False) -> None:
        self._serde = serde
        self._canonical = canonical
        self._encoder = msgspec.msgpack.Encoder(order="deterministic" if canonical else None)
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._decode_ext)

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encode a list of values; raise `SerializationError` for what is not plain data."""
        return _framed(self._encode_column(values))

    def encode_chunks(self, values: Sequence[Any], most: int) -> Iterator[bytes]:
        """Encode a list of values in chunks of at most ``most`` bytes before compression.

        A larger value has a chunk of its own. The same values give the same chunks.

        >>> codec = ColumnCodec()
        >>> [codec.decode(data) for data in codec.encode_chunks(["aaaa", "bbbb", "cccc"], 16)]
        [['aaaa'], ['bbbb', 'cccc']]
        """
        at, count = 0, _FIRST_CHUNK
        while at < len(values):
            part = values[at : at + count]
            content = self._encode_column(part)
            if len(content) > most and len(part) > 1:
                count = len(part) // 2
                continue
            yield _framed(content)
            at += len(part)
            if len(content) <= most // 2:
                count *= 2

    def encode_parts(
        self, values: Sequence[Any], numbers: Sequence[int], parts: int
    ) -> list[bytes]:
        """Encode values in several parts; ``numbers`` holds the part of each value, from 0 on.

        >>> codec = ColumnCodec()
        >>> [codec.decode(data) for data in codec.encode_parts(["a", "b", "c"], [1, 0, 1], 2)]
        [['b'], ['a', 'c']]
        """
        columns = self._encode_columns(values, lambda column: _split_column(column, numbers, parts))
        return list(map(_framed, columns))

    def _encode_column(self, values: Sequence[Any]) -> bytes:
        return self._encode_columns(values, lambda column: [column])[0]

    def _encode_columns(
        self, values: Sequence[Any], split: Callable[[list[Any]], list[list[Any]]]
    ) -> list[bytes]:
        encode = self._encoder.encode
        try:
            return list(map(encode, split(self._column(values))))
        except OverflowError:  # a number of more than 64 bits
            return list(map(encode, split(self._one_by_one(values))))

    def decode(self, data: bytes) -> list[Any]:
        """Decode what an ``encode`` method returned; raise `StateError` for other bytes."""
        content = _unframed(data)
        try:
            return self._values(self._decoder.decode(content))
        except (msgspec.DecodeError, ValueError, TypeError, LookupError) as error:
            raise StateError("the encoded values are damaged: they cannot be decoded") from error

    def encode_one(self, value: Any) -> bytes:
        """Encode a list of one value, as `encode` does, in less time for scalars and pairs."""
        kind = type(value)
        try:
            if kind in _SCALARS:
                return _framed(self._encoder.encode([_SCALAR, [value]]))
            if kind is tuple and value and _SCALARS.issuperset(map(type, value)):
                columns = [[_SCALAR, [item]] for item in value]
                return _framed(self._encoder.encode([_TUPLE, columns]))
        except OverflowError:
            pass  # a number of more than 64 bits
        return self.encode([value])

    def decode_one(self, data: bytes) -> Any:
        """Decode a list of one value."""
        (value,) = self.decode(data)
        return value

    def pack(self, value: Any) -> bytes:
        """Encode one value, without a frame."""
        return self._encoder.encode(self._packed(value))

    def unpack(self, data: bytes | memoryview) -> Any:
        """Decode what `pack` returned."""
        return self._decoder.decode(data)

    def check(self, value: Any) -> None:
        """Raise `SerializationError` unless the value can be encoded.

        Numbers and ASCII text cost a test of the type, a flat dict or list an encoding in C.
        """
        kind = type(value)
        if kind in _ALWAYS_ENCODABLE or (kind is str and value.isascii()):
            return
        try:
            flat = kind in (list, tuple) and _SCALARS.issuperset(map(type, value))
            if flat or (kind is dict and _is_row(value)):
                self._encoder.encode(value)
                return
        except OverflowError:
            pass  # a number of more than 64 bits: `pack` encodes it
        except ValueError as error:
            raise _not_encodable(kind, "it contains text that is not valid UTF-8") from error
        if _is_deep(value):
            raise _not_encodable(kind, f"it is nested more than {MAX_DEPTH} levels deep")
        try:
            self.pack(value)
        except SerializationError:
            raise
        except ValueError as error:
            raise _not_encodable(kind, "it contains text that is not valid UTF-8") from error

    # --- columns

    def _column(self, values: Sequence[Any]) -> list[Any]:
        kinds = set(map(type, values))
        if kinds <= _SCALARS:
            return [_SCALAR, values]
        if len(kinds) == 1:
            (kind,) = kinds
            number = _numbers.get(kind)
            lengths = set(map(len, values)) if number is not None else ()
            if number is not None and len(lengths) == 1 and lengths != {0}:
                parts = (list(map(itemgetter(at), values)) for at in range(*lengths))
                return [_TUPLE + number, [self._column(part) for part in parts]]
        return self._one_by_one(values)

    def _one_by_one(self, values: Sequence[Any]) -> list[Any]:
        return [_ANY, [self._packed(value) for value in values]]

    def _values(self, column: list[Any]) -> list[Any]:
        tag, content = column
        if tag in (_ANY, _SCALAR):
            values: list[Any] = content
            return values
        columns = [self._values(part) for part in content]
        rows = zip(*columns, strict=True)
        make = _makers[tag - _TUPLE]
        return list(rows) if make is tuple else list(map(make, rows))

    # --- single values

    def _packed(self, value: Any) -> Any:
        kind = type(value)
        if kind is int:
            small = -(2**63) <= value < 2**64
            return value if small else msgspec.msgpack.Ext(_BIG, str(value).encode())
        if kind in _SCALARS:
            is_nan = self._canonical and kind is float and value != value  # noqa: PLR0124 NaN
            return nan if is_nan else value
        if kind is list:
            return [self._packed(item) for item in value]
        if kind is dict:
            return self._packed_dict(value)
        if kind in _numbers:
            return self._ext(_TUPLES + _numbers[kind], [self._packed(item) for item in value])
        return self._packed_object(kind, value)

    def _packed_dict(self, value: dict[Any, Any]) -> Any:
        if set(map(type, value)) <= {str}:
            return {key: self._packed(item) for key, item in value.items()}
        pairs = [[self._packed(k), self._packed(v)] for k, v in value.items()]
        if self._canonical:
            pairs.sort(key=self._encoder.encode)
        return self._ext(_DICT, pairs)

    def _packed_object(self, kind: type, value: Any) -> Any:
        if kind in (set, frozenset):
            items = [self._packed(item) for item in sorted(value, key=repr)]
            if self._canonical:
                items.sort(key=self._encoder.encode)
            return self._ext(_SET if kind is set else _FROZENSET, items)
        writer = _WRITERS.get(kind)
        if writer is not None:
            code, write = writer
            return self._ext(code, write(value))
        if self._serde is not None:
            return msgspec.msgpack.Ext(_BY_SERDE, self._serde.dumps(value) or b"")
        raise SerializationError(
            f"a {kind.__qualname__} cannot be stored or shuffled without a serde; pass one "
            "(Materialized, Grouped, Repartitioned and Joined accept serdes), or use plain data: "
            "numbers, text, bytes, lists, tuples, dicts, sets, dates"
        )

    def _ext(self, code: int, content: Any) -> Any:
        return msgspec.msgpack.Ext(code, self._encoder.encode(content))

    def _decode_ext(self, code: int, data: memoryview) -> Any:
        if code == _BY_SERDE:
            if self._serde is None:
                raise StateError(
                    "a value was encoded by a serde and the operator has none now; "
                    "pass the serde that wrote it"
                )
            return self._serde.loads(bytes(data))
        if code == _BIG:
            return int(bytes(data))
        content = self._decoder.decode(data)
        if code >= _TUPLES:
            return _makers[code - _TUPLES](content)
        return _READERS[code](content)


_WRITERS: dict[type, tuple[int, Callable[[Any], Any]]] = {
    datetime: (_DATETIME, datetime.isoformat),
    date: (_DATE, date.isoformat),
    timedelta: (_DURATION, lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: (_DECIMAL, str),
    UUID: (_UUID, str),
}
_READERS: dict[int, Callable[[Any], Any]] = {
    _DICT: lambda pairs: {key: value for key, value in pairs},  # noqa: C416 pairs are lists
    _SET: set,
    _FROZENSET: frozenset,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _DURATION: lambda parts: timedelta(*parts),
    _DECIMAL: Decimal,
    _UUID: UUID,
}


def _is_row(value: dict[Any, Any]) -> bool:
    """Return whether a dict maps text to scalars."""
    for key, item in value.items():
        if type(key) is not str or type(item) not in _SCALARS:
            return False
    return True


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested too deeply, level by level: it may contain itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _items(one) if type(item) not in _SCALARS]
        if not level:
            return False
    return True


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def _not_encodable(kind: type, why: str) -> SerializationError:
    return SerializationError(f"a {kind.__qualname__} cannot be stored or shuffled: {why}")


def _split_column(column: list[Any], numbers: Sequence[int], parts: int) -> list[list[Any]]:
    """Split a column into columns of the same kind, by the part number of each value."""
    tag, content = column
    if tag in (_ANY, _SCALAR):
        split: list[list[Any]] = [[] for _ in range(parts)]
        appends = [part.append for part in split]
        for number, value in zip(numbers, content, strict=True):
            appends[number](value)
        return [[tag, part] for part in split]
    columns = zip(*(_split_column(part, numbers, parts) for part in content), strict=True)
    return [[tag, part] for part in columns]


def _framed(content: bytes) -> bytes:
    compressed = len(content) >= _WORTH_COMPRESSING
    body = pa.compress(content, codec="zstd", asbytes=True) if compressed else content
    return _FRAME.pack(_MAGIC, compressed, len(content), crc32(body)) + body


def _unframed(data: bytes) -> bytes:
    if len(data) < _FRAME.size or not data.startswith(_MAGIC[:2]):
        raise StateError("the encoded values were not written by Thulawa")
    magic, compressed, length, checksum = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise StateError("the encoded values were written by another version of Thulawa")
    body = memoryview(data)[_FRAME.size :]
    if crc32(body) != checksum or length > _MAX_LENGTH:
        raise StateError("the encoded values are damaged: their checksum does not match")
    try:
        content: bytes = (
            pa.decompress(body, length, codec="zstd", asbytes=True) if compressed else bytes(body)
        )
    except OSError as error:
        raise StateError("the encoded values are damaged: they cannot be decompressed") from error
    if len(content) != length:
        raise StateError("the encoded values are damaged: their length does not match")
    return content


PLAIN_DATA = ColumnCodec()
