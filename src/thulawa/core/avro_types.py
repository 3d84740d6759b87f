"""Checks of Avro's types: of values before they are encoded, of data before it is decoded."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from thulawa.errors import ConfigurationError

Schema: TypeAlias = Any  # JSON, parsed

_MAX_DEPTH = 200
_MAX_EMPTY_ITEMS = 1_000  # items without bytes, beyond one for each byte of data
_MAX_SHIFT = 63
_CONTINUES = 0x80  # bit of a byte of a number: another byte follows
_MAX_FLOAT = 3.4028235677973366e38  # larger numbers round to infinity in 32 bits


class Cursor:
    """Bytes and the position up to which they have been read.

    ``empty_items`` is how many items without bytes may still follow: reading an array of nulls
    must not cost more than a multiple of the bytes that ask for it.
    """

    __slots__ = ("_data", "empty_items", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self.empty_items = len(data) + _MAX_EMPTY_ITEMS

    @property
    def remaining(self) -> int:
        """Return the number of bytes that have not been read."""
        return len(self._data) - self.position

    def skip(self, count: int) -> int:
        """Skip bytes and return where they began; raise `ValueError` beyond the end."""
        start = self.position
        if not 0 <= count <= len(self._data) - start:
            raise ValueError("truncated")
        self.position += count
        return start

    def read(self, count: int) -> bytes:
        """Return the next bytes; raise `ValueError` beyond the end."""
        start = self.skip(count)
        return self._data[start : self.position]

    def read_long(self) -> int:
        """Return the next number, in Avro's variable length; raise `ValueError` beyond 64 bits."""
        start = self.skip(1)
        result = self._data[start]
        if result >= _CONTINUES:
            result, shift, byte = result & 0x7F, 0, _CONTINUES
            while byte >= _CONTINUES and shift < _MAX_SHIFT:
                shift += 7
                byte = self._data[self.skip(1)]
                result |= (byte & 0x7F) << shift
            if byte >= _CONTINUES or result >> 64:
                raise ValueError("a number of more than 64 bits")
        return (result >> 1) ^ -(result & 1)


def encode_long(value: int) -> bytes:
    r"""Return a number in Avro's variable length.

    >>> encode_long(-64), encode_long(64)
    (b'\x7f', b'\x80\x01')
    """
    out = bytearray()
    rest = (value << 1) ^ (value >> _MAX_SHIFT)
    while rest >= _CONTINUES:
        out.append(rest & 0x7F | _CONTINUES)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class Type(NamedTuple):
    """The checks of one type."""

    check: Callable[[Any, int], Any]  # value, depth -> the value as fastavro is to encode it
    skip: Callable[[Cursor, int], object]  # raises `ValueError` at invalid data
    matches: Callable[[Any], bool]  # whether a union chooses this branch for a value


def _checked(predicate: Callable[[Any], bool]) -> Callable[[Any, int], Any]:
    def check(value: Any, _depth: int) -> Any:
        if not predicate(value):
            raise TypeError
        return value

    return check


def _simple(matches: Callable[[Any], bool], skip: Callable[[Cursor, int], object]) -> Type:
    return Type(_checked(matches), skip, matches)


def _instance(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _integer(bits: int) -> Type:
    low, high = -(1 << bits - 1), 1 << bits - 1

    def skip(data: Cursor, _depth: int) -> None:
        if not low <= data.read_long() < high:
            raise ValueError(f"a number of more than {bits} bits")

    return _simple(lambda value: type(value) is int and low <= value < high, skip)


def _real(size: int, largest: float) -> Type:
    def fits(value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        return abs(value) < largest or not math.isfinite(value)

    return Type(_checked(fits), lambda data, _: data.skip(size), _instance(float))


def _skip_boolean(data: Cursor, _depth: int) -> None:
    if data.read(1) > b"\x01":
        raise ValueError("neither true nor false")


def _skip_bytes(data: Cursor, _depth: int) -> None:
    data.skip(data.read_long())


def _skip_string(data: Cursor, _depth: int) -> None:
    data.read(data.read_long()).decode()  # fastavro does not decode fields that are left out


PRIMITIVES = {
    "null": _simple(lambda value: value is None, lambda _data, _: None),
    "boolean": _simple(_instance(bool), _skip_boolean),
    "int": _integer(32),
    "long": _integer(64),
    "float": _real(4, _MAX_FLOAT),
    "double": _real(8, math.inf),
    "bytes": _simple(_instance(bytes), _skip_bytes),
    "string": _simple(_instance(str), _skip_string),
}


class Types:
    """Makes the types of a parsed schema; named ones once, since they may refer to themselves."""

    def __init__(self, names: dict[str, Schema]) -> None:
        self._schemas = names
        self._made: dict[str, Type] = {}

    def type_of(self, schema: Schema) -> Type:
        """Return the type of a schema as fastavro has parsed it."""
        if isinstance(schema, list):
            return _union([(_branch_name(branch), self.type_of(branch)) for branch in schema])
        if isinstance(schema, str):
            return PRIMITIVES.get(schema) or self._named(self._schemas[schema])
        match schema["type"]:
            case "array":
                return _array(self.type_of(schema["items"]))
            case "map":
                return _map(self.type_of(schema["values"]))
            case "record" | "enum" | "fixed":
                return self._named(schema)
        return self.type_of(schema["type"])

    def _named(self, schema: Schema) -> Type:
        name = schema["name"]
        if name not in self._made:
            if schema["type"] == "enum":
                self._made[name] = _enum(schema["symbols"])
            elif schema["type"] == "fixed":
                self._made[name] = _fixed(schema["size"])
            else:
                fields: dict[str, Type] = {}
                self._made[name] = _record(fields)  # before its fields, which may refer to it
                fields.update((f["name"], self.type_of(f["type"])) for f in schema["fields"])
        return self._made[name]


def _branch_name(schema: Schema) -> str:
    """Return the name by which fastavro selects a branch of a union."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        raise ConfigurationError("not an Avro schema: a union directly within a union")
    name: str = schema["name"] if schema["type"] in ("record", "enum", "fixed") else schema["type"]
    return name


def _fixed(size: int) -> Type:
    def matches(value: Any) -> bool:
        return isinstance(value, bytes) and len(value) == size

    return _simple(matches, lambda data, _: data.skip(size))


def _enum(symbols: list[str]) -> Type:
    def matches(value: Any) -> bool:
        return value in symbols

    def skip(data: Cursor, _depth: int) -> None:
        if not 0 <= data.read_long() < len(symbols):
            raise ValueError("no such symbol")

    return _simple(matches, skip)


def _deeper(depth: int) -> int:
    """Return the depth of the next level; raise `ValueError` beyond the deepest."""
    if depth >= _MAX_DEPTH:
        raise ValueError("nested too deeply")
    return depth + 1


def _record(fields: dict[str, Type]) -> Type:
    def matches(value: Any) -> bool:
        return isinstance(value, dict) and value.keys() == fields.keys()

    def check(value: Any, depth: int) -> dict[str, Any]:
        if not matches(value):
            raise TypeError
        inner = _deeper(depth)
        return {name: field.check(value[name], inner) for name, field in fields.items()}

    def skip(data: Cursor, depth: int) -> None:
        inner = _deeper(depth)
        for field in fields.values():
            field.skip(data, inner)

    return Type(check, skip, matches)


def _array(items: Type) -> Type:
    def check(value: Any, depth: int) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError
        inner = _deeper(depth)
        return [items.check(item, inner) for item in value]

    def skip(data: Cursor, depth: int) -> None:
        inner = _deeper(depth)
        for _ in _items(data):
            items.skip(data, inner)

    return Type(check, skip, _instance(list))


def _map(values: Type) -> Type:
    def check(value: Any, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise TypeError
        inner = _deeper(depth)
        return {key: values.check(item, inner) for key, item in value.items()}

    def skip(data: Cursor, depth: int) -> None:
        inner = _deeper(depth)
        keys = set[str]()
        for _ in _items(data):
            key = data.read(data.read_long()).decode()
            if key in keys:
                raise ValueError("duplicate key")
            keys.add(key)
            values.skip(data, inner)

    return Type(check, skip, _instance(dict))


def _items(data: Cursor) -> Iterator[None]:
    """Yield once for each item of the blocks of an array or a map."""
    while count := data.read_long():
        end = None
        if count < 0:
            count = -count
            end = data.read_long() + data.position  # with which readers may skip the block
        if count > data.remaining + data.empty_items:
            raise ValueError("more entries than bytes")
        for _ in range(count):
            before = data.position
            yield
            if data.position == before:
                data.empty_items -= 1
                if data.empty_items < 0:
                    raise ValueError("more entries than bytes")
        if end not in (None, data.position):
            raise ValueError("a block of another size than it says")


def _union(branches: list[tuple[str, Type]]) -> Type:
    def check(value: Any, depth: int) -> tuple[str, Any]:
        for name, branch in branches:
            if branch.matches(value):
                return name, branch.check(value, _deeper(depth))
        raise TypeError

    def skip(data: Cursor, depth: int) -> None:
        number = data.read_long()
        if not 0 <= number < len(branches):
            raise ValueError("no such branch")
        branches[number][1].skip(data, _deeper(depth))

    return Type(check, skip, lambda value: any(branch.matches(value) for _, branch in branches))
