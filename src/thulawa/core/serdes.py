"""Serdes: between values and the bytes of a topic or a store.

Data codecs only: nothing here unpickles. A serde that is asked for nothing (``None``) gives
nothing: null is not data. Where the topology names no serde for a topic, `Streams` and the
`TopologyTestDriver` take keys for text and values for JSON.

JSON is the standard library's, not msgspec's, because msgspec takes the last of two equal
keys silently; here this, NaN and nesting beyond reason are refused.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from thulawa.core.avro import Avro
from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError, SerializationError
from thulawa.core.records import Window, Windowed
from thulawa.core.registry import SchemaRegistry, framed_avro, framed_protobuf

__all__ = ["Serde", "Serdes", "WithoutData"]

T = TypeVar("T")

# What codecs raise at data that is not theirs. Anything else is a fault of the serde itself.
_NOT_ITS_DATA = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
_DEEPEST = 500  # levels of JSON
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
# not struct.Struct: a serde travels to workers, and a Struct cannot be pickled
_pack_long = partial(struct.pack, ">q")
_pack_double = partial(struct.pack, ">d")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A pair of functions: values to bytes, and back.

    ``serialize_all`` and ``deserialize_all`` do the same to a list where that is quicker than to
    do it to each; they raise at a list that has anything odd in it. ``None`` is null and is handed
    to neither function. A value for which ``serialize`` returns None is written to a topic as null.

    >>> Serdes.json().dumps({"a": 1})
    b'{"a":1}'
    >>> Serdes.long().loads(Serdes.long().dumps(7))
    7
    """

    name: str
    serialize: Callable[[T], bytes | None]
    deserialize: Callable[[bytes], T]
    serialize_all: Callable[[Sequence[T]], list[bytes]] | None = field(default=None, kw_only=True)
    deserialize_all: Callable[[Sequence[bytes]], list[T]] | None = field(default=None, kw_only=True)

    def dumps(self, value: T | None) -> bytes | None:
        """Give the bytes of a value; raise `SerializationError` if it has none."""
        if value is None:
            return None
        try:
            return self.serialize(value)
        except _NOT_ITS_DATA as error:
            # The value itself stays out of the message: messages end up in logs.
            raise SerializationError(
                f"a {type(value).__name__} cannot be written as {self.name}"
            ) from _without_data(error)

    def loads(self, data: bytes | None) -> T | None:
        """Give the value of bytes; raise `SerializationError` if they are not its bytes."""
        if data is None:
            return None
        try:
            return self.deserialize(data)
        except _NOT_ITS_DATA as error:
            raise SerializationError(
                f"a {type(data).__name__} cannot be read as {self.name}"
            ) from _without_data(error)

    def dump_column(self, values: Sequence[Any]) -> list[bytes | None]:
        """Give the bytes of many values; raise anything if one of them has none.

        Whoever wants to know which one it was asks for each.
        """
        return _column(self.serialize, self.serialize_all, values)

    def load_column(self, data: Sequence[bytes | None]) -> list[T | None]:
        """Give the values of many bytes; raise anything if some are not its bytes."""
        return _column(self.deserialize, self.deserialize_all, data)


def _not_null(data: bytes | None) -> bytes:
    if data is None:
        raise ValueError("the key of a window must not be null")
    return data


def _column(
    one: Callable[[Any], Any],
    many: Callable[[Sequence[Any]], list[Any]] | None,
    column: Sequence[Any],
) -> list[Any]:
    if None in column:
        return [None if item is None else one(item) for item in column]
    return list(map(one, column)) if many is None else many(column)


class Serdes:
    """The serdes that come with the library. Numbers are big-endian, as Kafka writes them."""

    @staticmethod
    def byte_array() -> Serde[bytes]:
        """Leave bytes as they are."""
        return Serde("bytes", _checked_bytes, _checked_bytes)

    @staticmethod
    def string() -> Serde[str]:
        """Write text as UTF-8."""
        return Serde("text", str.encode, bytes.decode)  # no function of ours between: half the cost

    @staticmethod
    def long() -> Serde[int]:
        """Write whole numbers as Kafka's long: eight bytes."""
        return Serde("long", _pack_long, _unpack_long)

    @staticmethod
    def double() -> Serde[float]:
        """Write numbers as Kafka's double: eight bytes."""
        return Serde("double", _pack_double, _unpack_double)

    @staticmethod
    def time_windowed(inner: Serde[T], size: Duration) -> Serde[Windowed[T]]:
        """Write the key of a time window as Kafka does: the key, then the window's start.

        >>> serde = Serdes.time_windowed(Serdes.string(), "1 s")
        >>> serde.loads(serde.dumps(Windowed("k", Window(5000, 6000))))
        Windowed(key='k', window=Window(start=5000, end=6000))
        """
        length = milliseconds(size, name="size")

        def serialize(key: Windowed[T]) -> bytes:
            return _not_null(inner.serialize(key.key)) + _pack_long(key.window.start)

        def deserialize(data: bytes) -> Windowed[T]:
            start = _unpack_long(data[-8:])
            return Windowed(inner.deserialize(data[:-8]), Window(start, start + length))

        return Serde(f"windowed {inner.name}", serialize, deserialize)

    @staticmethod
    def session_windowed(inner: Serde[T]) -> Serde[Windowed[T]]:
        """Write the key of a session as Kafka does: the key, then the session's end and start."""

        def serialize(key: Windowed[T]) -> bytes:
            window = key.window
            return (
                _not_null(inner.serialize(key.key))
                + _pack_long(window.end)
                + _pack_long(window.start)
            )

        def deserialize(data: bytes) -> Windowed[T]:
            end, start = _unpack_long(data[-16:-8]), _unpack_long(data[-8:])
            return Windowed(inner.deserialize(data[:-16]), Window(start, end))

        return Serde(f"session {inner.name}", serialize, deserialize)

    @staticmethod
    def avro(
        schema: str, *, registry: SchemaRegistry | None = None, subject: str | None = None
    ) -> Serde[Any]:
        """Write Avro; with a registry, framed with the schema's number as Confluent does.

        What was written with another schema is then read as this one, by Avro's rules: fields
        are left out, filled in by their defaults and found by their aliases, numbers widened.

        >>> Serdes.avro('"string"').dumps("foo").hex(" ")
        '06 66 6f 6f'
        """
        avro = Avro(schema)
        if registry is None:
            return Serde("Avro", avro.write, avro.read)
        return Serde("Avro", *framed_avro(avro, registry, _subject(subject)))

    @staticmethod
    def protobuf(
        message: type[T], *, registry: SchemaRegistry | None = None, subject: str | None = None
    ) -> Serde[T]:
        """Write messages of a class that protobuf's compiler made; its own library is used.

        With a registry they are framed with the schema's number as Confluent does.
        """
        made: Any = message

        def deserialize(data: bytes) -> Any:
            result = made()
            if result.ParseFromString(data) != len(data):
                raise ValueError("bytes are left over")
            return result

        def serialize(value: Any) -> bytes:
            return bytes(value.SerializeToString())

        if registry is None:
            return Serde("Protobuf", serialize, deserialize)
        frame, unframe = framed_protobuf(made.DESCRIPTOR, registry, _subject(subject))
        return Serde(
            "Protobuf",
            lambda value: frame(serialize(value)),
            lambda data: deserialize(unframe(data)),
        )

    @staticmethod
    def json() -> Serde[Any]:
        """Write JSON in its shortest form; refuse NaN, infinities and duplicate keys."""
        return Serde(
            "JSON",
            _dump_json,
            _load_json,
            serialize_all=_dump_all_json,
            deserialize_all=_load_all_json,
        )


def _subject(subject: str | None) -> str:
    if subject is None:
        raise ConfigurationError("a registry keeps schemas by subject: give one")
    return subject


class WithoutData(ValueError):
    """The name of an error's class without its text, which may quote the data."""


def _without_data(error: Exception) -> Exception:
    return WithoutData(type(error).__name__)


def _checked_bytes(data: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError
    return data


def _unpack_long(data: bytes) -> int:
    number: int = struct.unpack(">q", data)[0]
    return number


def _unpack_double(data: bytes) -> float:
    number: float = struct.unpack(">d", data)[0]
    return number


_MANY_DIGITS, _ZERO = 19, ord("0")
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _dump_json(value: Any) -> bytes:
    if type(value) is int:  # what counts and sums are: a tenth of the encoder's time
        return b"%d" % value
    return _encoder.encode(value).encode()


def _load_json(data: bytes) -> Any:
    if data.isdigit() and len(data) < _MANY_DIGITS and (data[0] != _ZERO or len(data) == 1):
        return int(data)  # as above
    if data.count(b"[") + data.count(b"{") > _DEEPEST and _depth(data) > _DEEPEST:
        raise ValueError("nested too deeply")
    text = data.decode()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    # what stands alone has no white space around it, and `decode` would only look for that
    return value if end == len(text) else _decoder.decode(text)


def _dump_all_json(values: Sequence[Any]) -> list[bytes]:
    if set(map(type, values)) == {int}:  # Python writes them as JSON does
        return str(list(values))[1:-1].encode().split(b", ")
    return list(map(_dump_json, values))


def _load_all_json(data: Sequence[bytes]) -> list[Any]:
    together = b",".join(data)
    # digits alone: so each of them is a number for itself, or there is an error, or one too few
    if data and not together.translate(None, b"0123456789,"):
        numbers: list[Any] = json.loads(b"[%b]" % together)
        if len(numbers) == len(data):
            return numbers
    return list(map(_load_json, data))


def _depth(data: bytes) -> int:
    """Give how deeply brackets are nested, those in texts aside.

    The recursion limit would stop the decoder too, but not where it was raised, and then the
    stack of the process is at stake.
    """
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("number too large")
    return number


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
)
_scan = _decoder.scan_once  # type: ignore[attr-defined]  # typeshed lacks it
