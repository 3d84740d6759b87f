"""Serdes convert between values and the bytes of a topic or a store.

They are data formats only: nothing here unpickles. ``None`` is null, and is converted to None.
Where the topology names no serde for a topic, `Streams` and the `TopologyTestDriver` read keys as
text and values as JSON.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.records import Window, Windowed
from thulawa.core.registry import SchemaRegistry
from thulawa.core.strict_json import dump_all_json, dump_json, load_all_json, load_json
from thulawa.errors import ConfigurationError, SerializationError

T = TypeVar("T")

# What serdes raise for data of another format. Anything else is a bug of the serde.
_BAD_DATA = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
# not struct.Struct, which cannot be pickled: serdes are sent to workers
_pack_long = partial(struct.pack, ">q")
_pack_double = partial(struct.pack, ">d")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A pair of functions: values to bytes, and back.

    ``serialize_all`` and ``deserialize_all`` convert lists where that is faster; they raise if one
    item cannot be converted. ``exact`` are types whose values have distinct bytes and are read back
    unchanged: a store compares such keys without serializing them. ``None`` is null, and neither
    function receives it. A value for which ``serialize`` returns None is written to a topic as
    null.

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
        """Return the bytes of a value; raise `SerializationError` if it cannot be written."""
        if value is None:
            return None
        try:
            return self.serialize(value)
        except SerializationError:
            raise
        except _BAD_DATA as error:
            # without the value, since error messages are logged
            raise SerializationError(
                f"a {type(value).__name__} cannot be written as {self.name}"
            ) from WithoutData(type(error).__name__)

    def loads(self, data: bytes | None) -> T | None:
        """Return the value of bytes; raise `SerializationError` if they cannot be read."""
        if data is None:
            return None
        try:
            return self.deserialize(data)
        except _BAD_DATA as error:
            raise SerializationError(
                f"a {type(data).__name__} cannot be read as {self.name}"
            ) from WithoutData(type(error).__name__)

    def dump_column(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return the bytes of many values; raise any exception if one cannot be written.

        Call `dumps` for each to find out which.
        """
        return _column(self.serialize, self.serialize_all, values)

    def load_column(self, data: Sequence[bytes | None]) -> list[T | None]:
        """Return the values of many bytes; raise any exception if one cannot be read."""
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
        """Return the serde of bytes, which are not changed."""
        return Serde("bytes", _checked_bytes, _checked_bytes, exact=frozenset((bytes,)))

    @staticmethod
    def string() -> Serde[str]:
        """Return the serde of text in UTF-8."""
        # the methods themselves: a function around them doubles the cost
        return Serde("text", str.encode, bytes.decode, exact=frozenset((str,)))

    @staticmethod
    def long() -> Serde[int]:
        """Return the serde of integers as Kafka's long: eight bytes."""
        return Serde("long", _pack_long, _unpack_long)

    @staticmethod
    def double() -> Serde[float]:
        """Return the serde of floats as Kafka's double: eight bytes; all NaNs have equal bytes."""
        return Serde("double", _dump_double, _unpack_double)

    @staticmethod
    def time_windowed(inner: Serde[T], size: Duration) -> Serde[Windowed[T]]:
        """Return the serde of time-windowed keys, as in Kafka: the key, then the window's start.

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
        """Return the serde of session keys, as in Kafka: the key, the session's end, its start."""

        def serialize(key: Windowed[T]) -> bytes:
            start, end = key.window
            return _not_null(inner.serialize(key.key)) + struct.pack(">qq", end, start)

        def deserialize(data: bytes) -> Windowed[T]:
            end, start = struct.unpack(">qq", data[-16:])
            return Windowed(inner.deserialize(data[:-16]), Window(start, end))

        return Serde(f"session {inner.name}", serialize, deserialize)

    @staticmethod
    def avro(
        schema: str, *, registry: SchemaRegistry | None = None, subject: str | None = None
    ) -> Serde[Any]:
        """Return the serde of an Avro schema; with a registry, in Confluent's wire format.

        Data of another schema is then read as this one, by Avro's schema resolution: fields are
        left out, filled in by their defaults and found by their aliases, numbers are promoted.

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
        """Return the serde of a class that the Protobuf compiler generated.

        With a registry messages have Confluent's wire format; files that its file imports are
        registered under their names.
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
        """Return the serde of compact JSON; NaN, infinities and duplicate keys are errors."""
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
        raise ConfigurationError("a registry stores schemas by subject: set subject=")
    return subject


class WithoutData(ValueError):
    """Stands for an error whose message may quote the data: only the name of its class."""


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
