"""Avro's binary encoding: a schema becomes a pair of functions.

The whole of the specification's types. What was written with another schema is read by
`thulawa.core.avro_resolution`. Data is never trusted: lengths are checked
against what is there before anything is made, and nesting is bounded.
"""

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from thulawa.core.errors import ConfigurationError

__all__ = [
    "PRIMITIVES",
    "Avro",
    "Codec",
    "Data",
    "Read",
    "array_codec",
    "deeper",
    "enum_codec",
    "fixed_codec",
    "map_codec",
    "read_long",
    "union_codec",
]

_DEEPEST = 200
_LONGEST = 2**63
_MOST_NULLS = 1_000  # entries that take no bytes: nulls, empty records
_MOST_SHIFTS = 63
_MORE = 0x80  # the bit that says another byte follows

Write = Callable[[Any, bytearray, int], None]
Read = Callable[["Data", int], Any]


class Codec(NamedTuple):
    """How values of one type are written and read."""

    write: Write
    read: Read
    fits: Callable[[Any], bool]  # whether a branch of a union takes a value


class Data:
    """Bytes, and how far they have been read.

    ``empty`` is how many entries without bytes there may still be: arrays of nulls must not cost
    more than a multiple of the bytes that ask for them.
    """

    __slots__ = ("_bytes", "at", "empty")

    def __init__(self, data: bytes) -> None:
        self._bytes = data
        self.at = 0
        self.empty = len(data) + _MOST_NULLS

    def take(self, count: int) -> bytes:
        """Give the next bytes; raise `ValueError` if there are not so many."""
        if count < 0 or count > self.left:
            raise ValueError("truncated")
        self.at += count
        return self._bytes[self.at - count : self.at]

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._bytes) - self.at


class Avro:
    """A schema, ready to write and read.

    >>> person = Avro('{"type": "record", "name": "P", "fields": [{"name": "n", "type": "int"}]}')
    >>> person.write({"n": 27})
    b'6'
    >>> person.read(b"6")
    {'n': 27}
    """

    def __init__(self, schema: str) -> None:
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise ConfigurationError("an Avro schema is JSON, and this is not") from error
        self.schema = schema
        self._codec = _Schemas().codec(parsed, "")

    def write(self, value: Any) -> bytes:
        """Give the bytes of a value."""
        out = bytearray()
        self._codec.write(value, out, 0)
        return bytes(out)

    def read(self, data: bytes) -> Any:
        """Give the value of bytes, all of them."""
        source = Data(data)
        value = self._codec.read(source, 0)
        if source.left:
            raise ValueError("bytes are left over")
        return value


class _Schemas:
    """Turns schemas into codecs; remembers those with names, which may refer to themselves."""

    def __init__(self) -> None:
        self._named: dict[str, Codec] = {}

    def codec(self, schema: Any, space: str) -> Codec:
        if isinstance(schema, list):
            return union_codec([self.codec(branch, space) for branch in schema])
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ConfigurationError(f"{schema!r} is no Avro schema")
        return self._complex(schema, space) or self.codec(schema["type"], space)

    def _complex(self, schema: dict[str, Any], space: str) -> Codec | None:
        match schema["type"]:
            case "array":
                return array_codec(self.codec(schema["items"], space))
            case "map":
                return map_codec(self.codec(schema["values"], space))
            case "record":
                return self._record(schema, space)
            case "enum":
                return self._name(schema, space, enum_codec(schema["symbols"]))
            case "fixed":
                return self._name(schema, space, fixed_codec(schema["size"]))
        return None

    def _by_name(self, name: str, space: str) -> Codec:
        full = name if "." in name or not space else f"{space}.{name}"
        codec = PRIMITIVES.get(name) or self._named.get(full) or self._named.get(name)
        if codec is None:
            raise ConfigurationError(f"the Avro schema uses {name!r}, which it does not define")
        return codec

    def _name(self, schema: dict[str, Any], space: str, codec: Codec) -> Codec:
        self._named[_full_name(schema, space)] = codec
        return codec

    def _record(self, schema: dict[str, Any], space: str) -> Codec:
        inner_space = _full_name(schema, space).rpartition(".")[0]
        fields: list[tuple[str, Codec]] = []
        codec = self._name(schema, space, _record(fields))
        fields.extend(
            (field["name"], self.codec(field["type"], inner_space)) for field in schema["fields"]
        )
        return codec


def _full_name(schema: dict[str, Any], space: str) -> str:
    name: str = schema["name"]
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


# --- numbers


def _write_long(value: int, out: bytearray) -> None:
    if not -_LONGEST <= value < _LONGEST:
        raise ValueError("beyond 64 bits")
    rest = (value << 1) ^ (value >> 63)
    while rest >= _MORE:
        out.append(rest & 0x7F | _MORE)
        rest >>= 7
    out.append(rest)


def read_long(data: Data) -> int:
    """Read a whole number."""
    result = shift = 0
    while True:
        (byte,) = data.take(1)
        result |= (byte & 0x7F) << shift
        if byte < _MORE:
            return (result >> 1) ^ -(result & 1)
        shift += 7
        if shift > _MOST_SHIFTS:
            raise ValueError("a number of more than 64 bits")


def _whole(bits: int) -> Codec:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def write(value: Any, out: bytearray, _: int) -> None:
        if type(value) is not int or not low <= value < high:
            raise TypeError
        _write_long(value, out)

    def read(data: Data, _: int) -> int:
        value = read_long(data)
        if not low <= value < high:
            raise ValueError(f"a number of more than {bits} bits")
        return value

    return Codec(write, read, lambda v: type(v) is int)


def _real(layout: str) -> Codec:
    """Give the codec of a layout; by its name, for a compiled one could not be sent to workers."""
    size = struct.calcsize(layout)

    def write(value: Any, out: bytearray, _: int) -> None:
        out.extend(struct.pack(layout, value))

    def read(data: Data, _: int) -> float:
        value: float = struct.unpack(layout, data.take(size))[0]
        return value

    return Codec(write, read, lambda v: isinstance(v, float))


# --- bytes and text


def _write_bytes(value: bytes, out: bytearray) -> None:
    _write_long(len(value), out)
    out.extend(value)


def _boolean() -> Codec:
    def write(value: Any, out: bytearray, _: int) -> None:
        if not isinstance(value, bool):
            raise TypeError
        out.append(value)

    def read(data: Data, _: int) -> bool:
        (byte,) = data.take(1)
        if byte > 1:
            raise ValueError("neither true nor false")
        return bool(byte)

    return Codec(write, read, lambda v: isinstance(v, bool))


def _null() -> Codec:
    def write(value: Any, _out: bytearray, _: int) -> None:
        if value is not None:
            raise TypeError

    return Codec(write, lambda _data, _: None, lambda v: v is None)


def _bytes() -> Codec:
    def write(value: Any, out: bytearray, _: int) -> None:
        if not isinstance(value, bytes):
            raise TypeError
        _write_bytes(value, out)

    return Codec(write, lambda data, _: data.take(read_long(data)), _is_bytes)


def _text() -> Codec:
    def write(value: Any, out: bytearray, _: int) -> None:
        _write_bytes(value.encode(), out)

    return Codec(
        write, lambda data, _: data.take(read_long(data)).decode(), lambda v: isinstance(v, str)
    )


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes)


def fixed_codec(size: int) -> Codec:
    """Make the codec of bytes of one length."""

    def write(value: Any, out: bytearray, _: int) -> None:
        if not isinstance(value, bytes) or len(value) != size:
            raise TypeError
        out.extend(value)

    return Codec(write, lambda data, _: data.take(size), _is_bytes)


def enum_codec(symbols: list[str]) -> Codec:
    """Make the codec of one of some symbols."""

    def write(value: Any, out: bytearray, _: int) -> None:
        _write_long(symbols.index(value), out)

    def read(data: Data, _: int) -> str:
        number = read_long(data)
        if not 0 <= number < len(symbols):
            raise ValueError("no such symbol")
        return symbols[number]

    return Codec(write, read, lambda v: v in symbols)


# --- what holds other things


def deeper(depth: int) -> int:
    """Go one level down; raise `ValueError` where there have been too many."""
    if depth >= _DEEPEST:
        raise ValueError("nested too deeply")
    return depth + 1


def _record(fields: list[tuple[str, Codec]]) -> Codec:
    def write(value: Any, out: bytearray, depth: int) -> None:
        if not isinstance(value, dict) or len(value) != len(fields):
            raise TypeError
        inner = deeper(depth)
        for name, codec in fields:
            codec.write(value[name], out, inner)

    def read(data: Data, depth: int) -> dict[str, Any]:
        inner = deeper(depth)
        return {name: codec.read(data, inner) for name, codec in fields}

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and value.keys() == {name for name, _ in fields}

    return Codec(write, read, fits)


def array_codec(items: Codec) -> Codec:
    """Make the codec of a list."""

    def write(value: Any, out: bytearray, depth: int) -> None:
        if not isinstance(value, list):
            raise TypeError
        inner = deeper(depth)
        if value:
            _write_long(len(value), out)
            for item in value:
                items.write(item, out, inner)
        out.append(0)

    def read(data: Data, depth: int) -> list[Any]:
        inner = deeper(depth)
        return [items.read(data, inner) for _ in _entries(data)]

    return Codec(write, read, lambda v: isinstance(v, list))


def map_codec(values: Codec) -> Codec:
    """Make the codec of a dictionary by text."""

    def write(value: Any, out: bytearray, depth: int) -> None:
        if not isinstance(value, dict):
            raise TypeError
        inner = deeper(depth)
        if value:
            _write_long(len(value), out)
            for key, item in value.items():
                _write_bytes(key.encode(), out)
                values.write(item, out, inner)
        out.append(0)

    def read(data: Data, depth: int) -> dict[str, Any]:
        inner = deeper(depth)
        found: dict[str, Any] = {}
        for _ in _entries(data):
            key = data.take(read_long(data)).decode()
            if key in found:
                raise ValueError("duplicate key")
            found[key] = values.read(data, inner)
        return found

    return Codec(write, read, lambda v: isinstance(v, dict))


def _entries(data: Data) -> Iterator[None]:
    """Go through the blocks of an array or a map, entry by entry."""
    while count := read_long(data):
        if count < 0:
            count = -count
            read_long(data)  # the block's size, for those who want to skip it
        if count > data.left + data.empty:
            raise ValueError("more entries than bytes")
        for _ in range(count):
            before = data.at
            yield
            if data.at == before:
                data.empty -= 1
                if data.empty < 0:
                    raise ValueError("more entries than bytes")


def union_codec(branches: list[Codec]) -> Codec:
    """Make the codec of one of several types."""

    def write(value: Any, out: bytearray, depth: int) -> None:
        for number, branch in enumerate(branches):
            if branch.fits(value):
                _write_long(number, out)
                branch.write(value, out, deeper(depth))
                return
        raise TypeError

    def read(data: Data, depth: int) -> Any:
        number = read_long(data)
        if not 0 <= number < len(branches):
            raise ValueError("no such branch")
        return branches[number].read(data, deeper(depth))

    return Codec(write, read, lambda v: any(branch.fits(v) for branch in branches))


PRIMITIVES = {
    "null": _null(),
    "boolean": _boolean(),
    "int": _whole(32),
    "long": _whole(64),
    "float": _real("<f"),
    "double": _real("<d"),
    "bytes": _bytes(),
    "string": _text(),
}
