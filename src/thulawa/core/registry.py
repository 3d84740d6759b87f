"""Schema registries: schemas by number, and data that says by which it was written.

The frame is Confluent's: a zero byte, the schema's number in four bytes, then the data.
"""

import json
import math
import struct
import time
from base64 import b64encode
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal, Protocol, TypeAlias
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from thulawa.core.avro import Avro, Data, read_long
from thulawa.core.avro_resolution import read_as
from thulawa.core.errors import ConfigurationError
from thulawa.core.secrets import MASK, masked_address

__all__ = [
    "HttpSchemaRegistry",
    "MemorySchemaRegistry",
    "SchemaRegistry",
    "framed_avro",
    "framed_protobuf",
]

SchemaKind: TypeAlias = Literal["AVRO", "PROTOBUF"]
_FRAME = struct.Struct(">bI")
_MOST_UNKNOWN = 10_000  # numbers that are remembered as unknown


class SchemaRegistry(Protocol):
    """Where schemas are kept."""

    def number_of(self, subject: str, schema: str, kind: SchemaKind = "AVRO") -> int:
        """Register a schema under a subject; give its number."""

    def schema_of(self, number: int) -> str:
        """Return a schema by its number; raise `LookupError` if there is none."""


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
    """A registry that speaks Confluent's protocol; every schema is asked for once.

    ``user`` and ``password``, or a ``token``, are sent with every request. A number that the
    registry does not know is asked for again after ``unknown_for`` seconds, not with every record.

    >>> HttpSchemaRegistry("https://registry:8081", user="ann", password="hunter2")
    HttpSchemaRegistry('https://registry:8081', user='ann', password='***')
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout: float = 10.0,
        unknown_for: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_registry(url, user, password, token)
        self._url = url.rstrip("/")
        self._user, self._password, self._token = user, password, token
        self._timeout = timeout
        self._unknown_for = unknown_for
        self._clock = clock
        self._numbers: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, str] = {}
        self._unknown: dict[int, float] = {}  # number -> when to ask again

    def __repr__(self) -> str:
        shown = [repr(self._url)]
        if self._user is not None:
            shown += [f"user={self._user!r}", f"password={MASK!r}"]
        if self._token is not None:
            shown.append(f"token={MASK!r}")
        return f"HttpSchemaRegistry({', '.join(shown)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_unknown": {}}  # clocks of other machines stand elsewhere

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
        """Return a schema by its number; raise `LookupError` if there is none."""
        if number not in self._schemas:
            self._refuse_unknown(number)
            try:
                self._schemas[number] = str(self._ask(f"/schemas/ids/{number}")["schema"])
            except LookupError:
                self._remember_unknown(number)
                raise
        return self._schemas[number]

    def _refuse_unknown(self, number: int) -> None:
        if self._unknown.get(number, -math.inf) > self._clock():
            raise LookupError(f"the schema registry knows no schema {number}")

    def _remember_unknown(self, number: int) -> None:
        if len(self._unknown) >= _MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]  # the oldest
        self._unknown[number] = self._clock() + self._unknown_for

    def _ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        elif self._user is not None:
            login = b64encode(f"{self._user}:{self._password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, headers)  # noqa: S310 the scheme was checked
        try:
            with urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 likewise
                return json.load(answer)
        except HTTPError as error:
            error.close()
            raise _refused(error, self._url, path) from error


def _check_registry(url: str, user: str | None, password: str | None, token: str | None) -> None:
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("a schema registry is reached by http:// or https://")
    if "@" in urlsplit(url).netloc:
        raise ConfigurationError(
            f"{masked_address(url)!r} has a user or a password in it: give user= and password="
        )
    if (user is None) != (password is None):
        raise ConfigurationError("user and password of a schema registry go together")
    if user is not None and token is not None:
        raise ConfigurationError("give a schema registry a user and a password, or a token")


def _refused(error: HTTPError, url: str, path: str) -> Exception:
    """Return what an answer means that is no success."""
    if error.code == HTTPStatus.NOT_FOUND:
        return LookupError(f"the schema registry at {url} has no {path}")
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ConfigurationError(
            f"the schema registry at {url} does not let us in ({error.code}): give user= and "
            "password=, or token="
        )
    return error


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
