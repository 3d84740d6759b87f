"""Serdes: between values and the bytes of a topic or a store.

Data codecs only: nothing here unpickles. A serde that is asked for nothing (``None``) gives
nothing: null is not data. Where the topology names no serde for a topic, `Streams` and the
`TopologyTestDriver` take keys for text and values for JSON.

JSON is the standard library's, not msgspec's, because msgspec takes the last of two equal
keys silently; here this, NaN and nesting beyond reason are refused.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError, SerializationError
from thulawa.core.records import Window, Windowed
from thulawa.core.registry import SchemaRegistry
from thulawa.core.strict_json import dump_all_json, dump_json, load_all_json, load_json

__all__ = ["Serde", "Serdes", "WithoutData"]

T = TypeVar("T")

# What codecs raise at data that is not theirs. Anything else is a fault of the serde itself.
_NOT_ITS_DATA = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
# not struct.Struct: a serde travels to workers, and a Struct cannot be pickled
_pack_long = partial(struct.pack, ">q")
_pack_double = partial(struct.pack, ">d")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A pair of functions: values to bytes, and back.

    ``serialize_all`` and ``deserialize_all`` do the same to a list where that is quicker than to
    do it to each; they raise at a list that has anything odd in it. ``exact`` are types of which
    each value that can be written has bytes of its own and is read back from them as it was: a
    store compares such keys without writing them. ``None`` is null and is handed to neither
    function. A value for which ``serialize`` returns None is written to a topic as null.

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
    exact: frozenset[type] = field(default=frozenset(), kw_only=True)

    def dumps(self, value: T | None) -> bytes | None:
        """Give the bytes of a value; raise `SerializationError` if it has none."""
        if value is None:
            return None
        try:
            return self.serialize(value)
        except SerializationError:
            raise
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
        return Serde("bytes", _checked_bytes, _checked_bytes, exact=frozenset((bytes,)))

    @staticmethod
    def string() -> Serde[str]:
        """Write text as UTF-8."""
        # no function of ours between: half the cost
        return Serde("text", str.encode, bytes.decode, exact=frozenset((str,)))

    @staticmethod
    def long() -> Serde[int]:
        """Write whole numbers as Kafka's long: eight bytes."""
        return Serde("long", _pack_long, _unpack_long)

    @staticmethod
    def double() -> Serde[float]:
        """Write numbers as Kafka's double: eight bytes; every NaN is written alike."""
        return Serde("double", _dump_double, _unpack_double)

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
        # imported where they are used: few programs need fastavro
        from thulawa.core.avro import Avro  # noqa: PLC0415
        from thulawa.core.framing import framed_avro  # noqa: PLC0415

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
        from thulawa.core.framing import framed_protobuf  # noqa: PLC0415 as above

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
            dump_json,
            load_json,
            serialize_all=dump_all_json,
            deserialize_all=load_all_json,
            exact=frozenset((str, int)),
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


def _dump_double(number: float) -> bytes:
    return _pack_double(number if number == number else math.nan)  # noqa: PLR0124 NaN is not itself


def _unpack_long(data: bytes) -> int:
    number: int = struct.unpack(">q", data)[0]
    return number


def _unpack_double(data: bytes) -> float:
    number: float = struct.unpack(">d", data)[0]
    return number
