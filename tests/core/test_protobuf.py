"""Protobuf messages with and without a registry's frame."""

from base64 import b64decode
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from thulawa.core.registry import MemorySchemaRegistry, SchemaReference
from thulawa.core.serdes import Serdes
from thulawa.errors import (
    ConfigurationError,
    SerializationError,
)


def _file(name: str, *imports: str) -> Any:
    """Make a file of two messages, the second of which holds another one."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=name.partition(".")[0])
    file.dependency.extend(imports)
    kind = descriptor_pb2.FieldDescriptorProto
    for message in (file.message_type.add(name="First"), file.message_type.add(name="Second")):
        message.field.add(name="text", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    inner = file.message_type[1].nested_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    return file


@pytest.fixture
def classes() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file("visits.proto"))
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"visits.{name}"))
        for name in ("First", "Second", "Second.Inner")
    ]


def test_the_frame_names_the_schema_and_the_message(classes: Any) -> None:
    first, second, inner = classes
    registry = MemorySchemaRegistry()
    frames = {first: b"\x00", second: b"\x02\x02", inner: b"\x04\x02\x00"}
    for message, mark in frames.items():
        serde = Serdes.protobuf(message, registry=registry, subject="visits-value")
        value = message(n=7) if message is inner else message(text="hi")
        data = serde.dumps(value)
        assert data == b"\x00\x00\x00\x00\x01" + mark + value.SerializeToString()
        assert serde.loads(data) == value
    file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(registry.get_schema(1).text))
    assert [message.name for message in file.message_type] == ["First", "Second"]


def test_another_message_and_unframed_data_are_rejected(classes: Any) -> None:
    first, second, _ = classes
    registry = MemorySchemaRegistry()
    one = Serdes.protobuf(first, registry=registry, subject="v")
    other = Serdes.protobuf(second, registry=registry, subject="v")
    foreign = [other.dumps(second(text="x")), b"", b"\x00\x00", b"\x01\x00\x00\x00\x01\x00"]
    for data in [*foreign, b"\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x01\xfe\xff\xff\x7f"]:
        with pytest.raises(SerializationError):
            one.loads(data)
    # Of another version of the file the order of messages is not known.
    read: Any = one.loads(b"\x00\x00\x00\x00\x09\x02\x02" + first(text="x").SerializeToString())
    assert read.text == "x"


def test_files_that_are_imported_are_registered_and_referred_to() -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(_file("base.proto", "google/protobuf/timestamp.proto"))
    pool.Add(_file("middle.proto", "base.proto"))
    pool.Add(_file("user.proto", "middle.proto", "base.proto"))
    registry = MemorySchemaRegistry()
    user = message_factory.GetMessageClass(pool.FindMessageTypeByName("user.First"))
    serde = Serdes.protobuf(user, registry=registry, subject="v")
    data = serde.dumps(user(text="x"))
    assert serde.loads(data) == user(text="x")
    assert data is not None
    schema = registry.get_schema(int.from_bytes(data[1:5]))
    assert schema.references == (
        SchemaReference("middle.proto", "middle.proto", 1),
        SchemaReference("base.proto", "base.proto", 1),
    )
    middle = registry.get_version("middle.proto", 1)
    assert middle.references == (SchemaReference("base.proto", "base.proto", 1),)
    assert registry.get_version("base.proto", 1).references == ()


def test_a_registry_needs_a_subject(classes: Any) -> None:
    with pytest.raises(ConfigurationError, match="by subject"):
        Serdes.protobuf(classes[0], registry=MemorySchemaRegistry())
