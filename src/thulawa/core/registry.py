"""Schema registries: schemas by number, and data that says by which it was written.

The frame is Confluent's: a zero byte, the schema's number in four bytes, then the data.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import quote
from urllib.request import Request, urlopen

from thulawa.core.avro import Avro, Data, read_long
from thulawa.core.avro_resolution import read_as
from thulawa.core.errors import ConfigurationError

__all__ = [
    "HttpSchemaRegistry",
    "MemorySchemaRegistry",
    "SchemaRegistry",
    "framed_avro",
    "framed_protobuf",
]

SchemaKind: TypeAlias = Literal["AVRO", "PROTOBUF"]
_FRAME = struct.Struct(">bI")


class SchemaRegistry(Protocol):
    """Where schemas are kept."""

    def number_of(self, subject: str, schema: str, kind: SchemaKind = "AVRO") -> int:
        """Register a schema under a subject; give its number."""

    def schema_of(self, number: int) -> str:
        """Give a schema by its number; raise `LookupError` if there is none."""


class MemorySchemaRegistry:
    """A registry for tests.

    >>> registry = MemorySchemaRegistry()
    >>> number = registry.number_of("visits-value", '"string"')
    >>> registry.schema_of(number)
    '"string"'
    """

    def __init__(self) -> None:
        self._schemas: list[str] = []

    def number_of(
        self,
        subject: str,  # noqa: ARG002 numbers are global
        schema: str,
        kind: SchemaKind = "AVRO",  # noqa: ARG002 as are those of all kinds
    ) -> int:
        """Register a schema."""
        if schema not in self._schemas:
            self._schemas.append(schema)
        return self._schemas.index(schema) + 1

    def schema_of(self, number: int) -> str:
        """Give a schema by its number."""
        if not 0 < number <= len(self._schemas):
            raise LookupError(number)
        return self._schemas[number - 1]


class HttpSchemaRegistry:
    """A registry that speaks Confluent's protocol; every answer is asked for once."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError("a schema registry is reached by http:// or https://")
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._numbers: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}

    def number_of(self, subject: str, schema: str, kind: SchemaKind = "AVRO") -> int:
        """Register a schema under a subject; give its number."""
        known = self._numbers.get((subject, schema))
        if known is None:
            path = f"/subjects/{quote(subject, safe='')}/versions"
            body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
            known = int(self._ask(path, body)["id"])
            self._numbers[subject, schema] = known
        return known

    def schema_of(self, number: int) -> str:
        """Give a schema by its number."""
        if number not in self._schemas:
            self._schemas[number] = str(self._ask(f"/schemas/ids/{number}")["schema"])
        return self._schemas[number]

    def _ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, kind)  # noqa: S310 the scheme was checked
        with urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 the scheme was checked
            return json.load(answer)


def framed_avro(
    avro: Avro, registry: SchemaRegistry, subject: str
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Give functions that write with one schema, and read as that schema what any other wrote."""
    readers: dict[int, Callable[[bytes], Any]] = {}

    def serialize(value: Any) -> bytes:
        return _framed(registry.number_of(subject, avro.schema), avro.write(value))

    def deserialize(data: bytes) -> Any:
        number, content = _unframed(data)
        if number not in readers:
            written = registry.schema_of(number)
            readers[number] = avro.read if written == avro.schema else read_as(written, avro.schema)
        return readers[number](content)

    return serialize, deserialize


def framed_protobuf(
    descriptor: Any, registry: SchemaRegistry, subject: str
) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Give functions that frame a message's bytes and take the frame off again.

    The schema is the whole file, as its serialized descriptor in Base64; which of its messages it
    is follows the number: the way from the file to the message, [0] written as one zero.
    """
    imported = [file.name for file in descriptor.file.dependencies]
    foreign = [name for name in imported if not name.startswith("google/protobuf/")]
    if foreign:
        raise ConfigurationError(
            f"{descriptor.file.name} imports {foreign[0]}: a registry needs the schema in one file"
        )
    schema = b64encode(descriptor.file.serialized_pb).decode()
    place = _place_in_file(descriptor)
    mark = b"\0" if place == [0] else b"".join(map(_varint, [len(place), *place]))

    def number() -> int:
        return registry.number_of(subject, schema, "PROTOBUF")

    def frame(content: bytes) -> bytes:
        return _framed(number(), mark + content)

    def unframe(data: bytes) -> bytes:
        written, content = _unframed(data)
        source = Data(content)
        length = read_long(source)
        if not 0 <= length <= source.left:
            raise ValueError("truncated")
        indexes = [read_long(source) for _ in range(length)] or [0]
        # Another version of the file may hold its messages in another order.
        if written == number() and indexes != place:
            raise ValueError("another message of the file")
        return source.take(source.left)

    return frame, unframe


def _framed(number: int, content: bytes) -> bytes:
    """Put the schema's number before the data."""
    return _FRAME.pack(0, number) + content


def _unframed(data: bytes) -> tuple[int, bytes]:
    """Give the schema's number and the data."""
    magic, number = _FRAME.unpack(data[: _FRAME.size])
    if magic != 0:
        raise ValueError("not framed")
    return number, data[_FRAME.size :]


def _place_in_file(descriptor: Any) -> list[int]:
    """Give the indexes that lead from the file to a message, the outermost first."""
    outer = descriptor.containing_type
    if outer is not None:
        names = [nested.name for nested in outer.nested_types]
        return [*_place_in_file(outer), names.index(descriptor.name)]
    return [list(descriptor.file.message_types_by_name).index(descriptor.name)]


def _varint(number: int) -> bytes:
    return Avro('"int"').write(number)
