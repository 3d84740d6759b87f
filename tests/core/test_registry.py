"""A schema registry over HTTP: authentication, references, and requests that are not repeated."""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from copy import copy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark import cloudpickle

from thulawa.core.registry import HttpSchemaRegistry, Schema, SchemaReference
from thulawa.core.serdes import Serdes
from thulawa.errors import (
    ConfigurationError,
    SerializationError,
)

ANN: dict[str, Any] = {"user": "ann", "password": "pä:ss"}
TOKEN: dict[str, Any] = {"token": "t0ken"}


class FakeRegistry:
    """A schema registry on loopback; ``requests`` are the paths and the credentials it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.schemas: dict[int, dict[str, Any]] = {7: {"schema": '"string"'}}
        self.subjects: dict[str, list[int]] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(fake.get)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(lambda path: fake.post(path, body))

            def answer(self, find: Any) -> None:
                path = self.path.partition("?")[0]
                fake.requests.append((path, self.headers["Authorization"]))
                found = find([unquote(part) for part in path.split("/")[1:]])
                denied = self.headers["Authorization"] == "Bearer wrong"
                self.send_response(401 if denied else 404 if found is None else 200)
                self.end_headers()
                missing = {"error_code": 40403, "message": "Schema not found"}
                self.wfile.write(json.dumps(missing if denied or found is None else found).encode())

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def get(self, path: list[str]) -> dict[str, Any] | None:
        match path:
            case ["schemas", "ids", number]:
                return self.schemas.get(int(number))
            case ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject, [])
                return self.registered(subject, ids[int(version) - 1]) if ids else None
        return None

    def post(self, path: list[str], body: dict[str, Any]) -> dict[str, Any] | None:
        known = next((i for i, schema in self.schemas.items() if schema == body), None)
        match path:
            case ["subjects", subject, "versions"]:
                number = known or len(self.schemas) + 7
                self.schemas[number] = body
                self.subjects.setdefault(subject, []).append(number)
                return {"id": number}
            case ["subjects", subject]:
                return self.registered(subject, known) if known else None
        return None

    def registered(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    yield registry
    registry.close()


def test_a_schema_is_registered_and_requested_once(fake: FakeRegistry) -> None:
    registry = HttpSchemaRegistry(fake.url + "/")
    serde = Serdes.avro('"string"', registry=registry, subject="a/b-value")
    for _ in range(3):
        assert serde.loads(serde.dumps("x")) == "x"
    assert fake.paths == ["/subjects/a%2Fb-value/versions", "/schemas/ids/8"]
    arrived = cloudpickle.loads(cloudpickle.dumps(serde))  # type: ignore[no-untyped-call]
    assert arrived.loads(arrived.dumps("x")) == "x"
    with pytest.raises(ConfigurationError, match="http"):
        HttpSchemaRegistry("file:///etc/passwd")


def test_an_unknown_schema_is_requested_again_after_a_while_only(fake: FakeRegistry) -> None:
    now = [100.0]
    registry = HttpSchemaRegistry(fake.url, unknown_for=60, clock=lambda: now[0])
    serde = Serdes.avro('"string"', registry=registry, subject="s")
    for _ in range(5):
        with pytest.raises(SerializationError):
            serde.loads(b"\x00\x00\x00\x00\x09\x02x")
        assert serde.loads(b"\x00\x00\x00\x00\x07\x02x") == "x"
    assert fake.paths == ["/schemas/ids/9", "/schemas/ids/7"]
    now[0] += 61
    with pytest.raises(LookupError):
        registry.get_schema(9)
    assert fake.paths[2:] == ["/schemas/ids/9"]


def test_the_number_of_unknown_schemas_that_are_remembered_is_bounded(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thulawa.core.registry._MAX_UNKNOWN_IDS", 3)
    registry = HttpSchemaRegistry(fake.url)
    for schema_id in (1, 2, 3, 4, 4, 1):
        with pytest.raises(LookupError):
            registry.get_schema(schema_id)
    assert len(fake.requests) == 5
    assert len(registry._unknown) == 3
    elsewhere = copy(registry)  # as pickle does
    with pytest.raises(LookupError):
        elsewhere.get_schema(4)
    assert len(fake.requests) == 6, "another machine has another clock"


def test_credentials_are_sent_with_every_request(fake: FakeRegistry) -> None:
    HttpSchemaRegistry(fake.url, **ANN).get_schema(7)
    HttpSchemaRegistry(fake.url, **TOKEN).get_schema(7)
    HttpSchemaRegistry(fake.url).get_schema(7)
    basic = b64encode("ann:pä:ss".encode()).decode()
    assert [login for _, login in fake.requests] == [f"Basic {basic}", "Bearer t0ken", None]
    with pytest.raises(ConfigurationError, match=r"denies access \(401\)") as caught:
        HttpSchemaRegistry(fake.url, token="wrong").get_schema(8)  # noqa: S106 it is none
    assert "wrong" not in str(caught.value)


def test_secrets_of_a_registry_are_not_shown() -> None:
    shown = repr(HttpSchemaRegistry("http://r:1", **ANN))
    shown += repr(HttpSchemaRegistry("http://r:1", **TOKEN))
    assert "pä:ss" not in shown
    assert "t0ken" not in shown
    assert "http://r:1" in shown
    with pytest.raises(ConfigurationError) as caught:
        HttpSchemaRegistry("http://ann:hunter2@r:1")
    assert "hunter2" not in str(caught.value)
    half: list[dict[str, Any]] = [{"user": "ann"}, {"password": "p"}, ANN | TOKEN]
    for wrong in half:
        with pytest.raises(ConfigurationError):
            HttpSchemaRegistry("http://r:1", **wrong)


def test_an_avro_schema_is_read_with_the_schemas_it_refers_to(fake: FakeRegistry) -> None:
    city = {"type": "record", "name": "n.City", "fields": [{"name": "zip", "type": "int"}]}
    home = {"type": "record", "name": "n.Home", "fields": [{"name": "city", "type": "n.City"}]}
    person = {"type": "record", "name": "P", "fields": [{"name": "home", "type": "n.Home"}]}
    registry = HttpSchemaRegistry(fake.url)
    registry.register_schema("city", Schema(json.dumps(city)))
    to_city = (SchemaReference("n.City", "city", 1),)
    registry.register_schema("home", Schema(json.dumps(home), references=to_city))
    to_home = (SchemaReference("n.Home", "home", 1),)
    number = registry.register_schema("p-value", Schema(json.dumps(person), references=to_home))
    whole = {**person, "fields": [{"name": "home", "type": {**home, "fields": [
        {"name": "city", "type": city}]}}]}  # fmt: skip
    serde = Serdes.avro(json.dumps(whole), registry=registry, subject="p-value")
    data = b"\x00" + number.to_bytes(4) + b"\x0e"
    assert serde.loads(data) == {"home": {"city": {"zip": 7}}}
    before = len(fake.requests)
    serde.loads(data)
    assert len(fake.requests) == before


def test_a_protobuf_file_is_registered_with_the_files_it_imports(fake: FakeRegistry) -> None:
    pool = descriptor_pool.DescriptorPool()
    for name, imports in (("base", []), ("user", ["base.proto"])):
        file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=name)
        file.dependency.extend(imports)
        file.message_type.add(name="M")
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("user.M"))
    registry = HttpSchemaRegistry(fake.url)
    serde = Serdes.protobuf(message, registry=registry, subject="u-value")
    for _ in range(2):
        assert serde.loads(serde.dumps(message())) == message()
    assert fake.paths == [
        "/subjects/base.proto/versions",
        "/subjects/base.proto",
        "/subjects/u-value/versions",
    ]
    references = [{"name": "base.proto", "subject": "base.proto", "version": 1}]
    assert fake.schemas[9]["references"] == references
    with pytest.raises(LookupError, match="no version 1 of subject 'other'"):
        registry.get_version("other", 1)
