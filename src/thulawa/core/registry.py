"""Schema registries: schemas by the ids that framed data begins with.

HTTP, authentication, retries and caching are those of Confluent's own client. It is imported with
the first request, since it brings an HTTP library that most programs never need.
"""

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

from cachetools import TTLCache

from thulawa.core.secrets import MASK, masked_address
from thulawa.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import schema_registry

SchemaKind: TypeAlias = Literal["AVRO", "PROTOBUF"]
_MAX_UNKNOWN_IDS = 10_000


class SchemaReference(NamedTuple):
    """A schema that another one uses: ``name`` is how it is imported, the rest where it is."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as registries keep it."""

    text: str
    kind: SchemaKind = "AVRO"
    references: tuple[SchemaReference, ...] = ()


class SchemaRegistry(Protocol):
    """Keeps schemas by id, and the versions of each subject."""

    def register_schema(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject, unless it is; return its id."""

    def get_schema(self, schema_id: int) -> Schema:
        """Return a schema by its id; raise `LookupError` if there is none."""

    def get_version(self, subject: str, version: int) -> Schema:
        """Return a version of a subject; raise `LookupError` if there is none."""

    def lookup_version(self, subject: str, schema: Schema) -> int:
        """Return the version of a registered schema; raise `LookupError` if it is not there."""


class MemorySchemaRegistry:
    """A registry for tests.

    >>> registry = MemorySchemaRegistry()
    >>> schema_id = registry.register_schema("visits-value", Schema('"string"'))
    >>> registry.get_schema(schema_id).text
    '"string"'
    """

    def __init__(self) -> None:
        self._schemas: list[Schema] = []
        self._subjects: dict[str, list[Schema]] = {}

    def register_schema(self, subject: str, schema: Schema) -> int:
        """Register a schema; equal schemas have one id under all subjects."""
        for known in (self._schemas, self._subjects.setdefault(subject, [])):
            if schema not in known:
                known.append(schema)
        return self._schemas.index(schema) + 1

    def get_schema(self, schema_id: int) -> Schema:
        """Return a schema by its id."""
        return _by_number(self._schemas, schema_id)

    def get_version(self, subject: str, version: int) -> Schema:
        """Return a version of a subject."""
        return _by_number(self._subjects.get(subject, []), version)

    def lookup_version(self, subject: str, schema: Schema) -> int:
        """Return the version of a registered schema."""
        schemas = self._subjects.get(subject, [])
        if schema not in schemas:
            raise LookupError(subject)
        return schemas.index(schema) + 1


def _by_number(schemas: list[Schema], number: int) -> Schema:
    if not 0 < number <= len(schemas):
        raise LookupError(number)
    return schemas[number - 1]


@dataclass(eq=False, repr=False)
class HttpSchemaRegistry:
    """A registry that speaks Confluent's protocol; every schema is requested once.

    ``user`` and ``password``, or a ``token``, are sent with every request. An id that the registry
    does not know is requested again after ``unknown_for`` seconds, not with every record.

    >>> HttpSchemaRegistry("https://registry:8081", user="ann", password="hunter2")
    HttpSchemaRegistry('https://registry:8081', user='ann', password='***')
    """

    url: str
    _: KW_ONLY
    user: str | None = None
    password: str | None = None
    token: str | None = None
    timeout: float = 10.0
    unknown_for: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._check_options()
        self.url = self.url.rstrip("/")
        self._config: dict[str, Any] = {"url": self.url, "timeout": self.timeout}
        if self.user is not None:
            self._config["basic.auth.user.info"] = f"{self.user}:{self.password}"
        if self.token is not None:
            self._config |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": self.token,
                "bearer.auth.logical.cluster": "",
            }
        self._lock = Lock()
        self._connected: schema_registry.SchemaRegistryClient | None = None
        self._unknown: TTLCache[int, None] = TTLCache(
            _MAX_UNKNOWN_IDS, self.unknown_for, timer=self.clock
        )

    def __repr__(self) -> str:
        shown = [repr(self.url)]
        if self.user is not None:
            shown += [f"user={self.user!r}", f"password={MASK!r}"]
        if self.token is not None:
            shown.append(f"token={MASK!r}")
        return f"HttpSchemaRegistry({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # without connections and times: another machine has another clock
        options = {one.name: getattr(self, one.name) for one in fields(self)}
        return partial(HttpSchemaRegistry, **options), ()

    def _check_options(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(
                "the address of a schema registry begins with http:// or https://"
            )
        if "@" in urlsplit(self.url).netloc:
            raise ConfigurationError(
                f"{masked_address(self.url)!r} has a user or a password in it: give user= and "
                "password="
            )
        if (self.user is None) != (self.password is None):
            raise ConfigurationError("user and password of a schema registry go together")
        if self.user is not None and self.token is not None:
            raise ConfigurationError("give a schema registry a user and a password, or a token")

    def register_schema(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject, unless it is; return its id."""
        with self._translated_errors(f"subject {subject!r}"):
            return self._client().register_schema(subject, _to_confluent(schema))

    def get_schema(self, schema_id: int) -> Schema:
        """Return a schema by its id; raise `LookupError` if there is none."""
        with self._lock:
            if schema_id in self._unknown:
                raise LookupError(f"the schema registry at {self.url} has no schema {schema_id}")
        try:
            with self._translated_errors(f"schema {schema_id}"):
                return _from_confluent(self._client().get_schema(schema_id))
        except LookupError:
            with self._lock:
                self._unknown[schema_id] = None
            raise

    def get_version(self, subject: str, version: int) -> Schema:
        """Return a version of a subject; raise `LookupError` if there is none."""
        with self._translated_errors(f"version {version} of subject {subject!r}"):
            return _from_confluent(self._client().get_version(subject, version).schema)

    def lookup_version(self, subject: str, schema: Schema) -> int:
        """Return the version of a registered schema; raise `LookupError` if it is not there."""
        with self._translated_errors(f"subject {subject!r} with this schema"):
            found = self._client().lookup_schema(subject, _to_confluent(schema)).version
        if found is None:
            raise LookupError(f"the schema registry at {self.url} names no version of {subject!r}")
        return found

    def _client(self) -> "schema_registry.SchemaRegistryClient":
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 see above

        with self._lock:
            if self._connected is None:
                self._connected = SchemaRegistryClient(self._config)
            return self._connected

    @contextmanager
    def _translated_errors(self, wanted: str) -> "Iterator[None]":
        """Raise the client's errors as `LookupError` or `ConfigurationError` where they are."""
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 see above

        try:
            yield
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == HTTPStatus.NOT_FOUND:
                raise LookupError(f"the schema registry at {self.url} has no {wanted}") from error
            if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise ConfigurationError(
                    f"the schema registry at {self.url} denies access ({status}): give user= and "
                    "password=, or token="
                ) from error
            raise


def _to_confluent(schema: Schema) -> "schema_registry.Schema":
    from confluent_kafka import schema_registry  # noqa: PLC0415 see above

    references = [schema_registry.SchemaReference(*one) for one in schema.references]
    return schema_registry.Schema(schema.text, schema.kind, references)


def _from_confluent(schema: "schema_registry.Schema") -> Schema:
    kind: Any = schema.schema_type or "AVRO"
    references = tuple(
        SchemaReference(one.name or "", one.subject or "", one.version or 0)
        for one in schema.references or ()
    )
    return Schema(schema.schema_str or "", kind, references)
