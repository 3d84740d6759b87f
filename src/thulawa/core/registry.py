"""Schema registries: schemas by number, and data that says by which it was written.

The frame is Confluent's: a zero byte, the schema's number in four bytes, then the data.
"""

import json
import struct
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote
from urllib.request import Request, urlopen

from thulawa.core.avro import Avro
from thulawa.core.errors import ConfigurationError

__all__ = ["HttpSchemaRegistry", "MemorySchemaRegistry", "SchemaRegistry", "framed_avro"]

_FRAME = struct.Struct(">bI")


class SchemaRegistry(Protocol):
    """Where schemas are kept."""

    def number_of(self, subject: str, schema: str) -> int:
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

    def number_of(self, subject: str, schema: str) -> int:  # noqa: ARG002 numbers are global
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

    def number_of(self, subject: str, schema: str) -> int:
        """Register a schema under a subject; give its number."""
        known = self._numbers.get((subject, schema))
        if known is None:
            path = f"/subjects/{quote(subject, safe='')}/versions"
            known = int(self._ask(path, {"schema": schema})["id"])
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
    """Give functions that write with one schema and read by whichever was written with."""
    readers: dict[int, Avro] = {}

    def serialize(value: Any) -> bytes:
        return _FRAME.pack(0, registry.number_of(subject, avro.schema)) + avro.write(value)

    def deserialize(data: bytes) -> Any:
        magic, number = _FRAME.unpack(data[: _FRAME.size])
        if magic != 0:
            raise ValueError("not framed")
        if number not in readers:
            readers[number] = Avro(registry.schema_of(number))
        return readers[number].read(data[_FRAME.size :])

    return serialize, deserialize
