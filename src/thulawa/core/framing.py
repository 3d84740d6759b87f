"""Confluent's frame of data with a schema: a zero byte, the schema's id in four bytes, the data."""

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import Any

from thulawa.core.avro import Avro
from thulawa.core.avro_types import Cursor, encode_long
from thulawa.core.registry import Schema, SchemaReference, SchemaRegistry

_FRAME = ">bI"
_FRAME_SIZE = struct.calcsize(_FRAME)


def framed_avro(
    avro: Avro, registry: SchemaRegistry, subject: str
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return functions that write with one schema, and read as it what any schema has written."""
    readers: dict[int, Callable[[bytes], Any]] = {}
    schema_id = _once(lambda: registry.register_schema(subject, Schema(avro.schema)))

    def serialize(value: Any) -> bytes:
        return _framed(schema_id(), avro.write(value))

    def deserialize(data: bytes) -> Any:
        written_id, content = _unframed(data)
        if written_id not in readers:
            written = registry.get_schema(written_id)
            same = not written.references and json.loads(written.text) == json.loads(avro.schema)
            readers[written_id] = avro.read if same else avro.reader(_avro_of(written, registry))
        return readers[written_id](content)

    return serialize, deserialize


def _once(make: Callable[[], int]) -> Callable[[], int]:
    """Return a function that makes an id when first called; functools.cache cannot be pickled."""
    made: list[int] = []

    def get() -> int:
        if not made:
            made.append(make())
        return made[0]

    return get


def _avro_of(schema: Schema, registry: SchemaRegistry) -> Avro:
    """Return a schema together with those that it refers to."""
    found: dict[str, None] = {}  # in the order in which they use each other

    def collect(references: tuple[SchemaReference, ...]) -> None:
        for reference in references:
            used = registry.get_version(reference.subject, reference.version)
            collect(used.references)
            found[used.text] = None

    collect(schema.references)
    return Avro(schema.text, list(found))


def framed_protobuf(
    descriptor: Any, registry: SchemaRegistry, subject: str
) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Return functions that add the frame to a message's bytes, and remove it.

    The schema is the whole file, as its serialized descriptor in Base64. Files that it imports are
    registered under their names, except those that come with protobuf. Behind the id stand the
    indexes that lead from the file to the message; [0] is written as one zero.
    """
    path = _path_in_file(descriptor)
    prefix = b"\0" if path == [0] else b"".join(map(encode_long, [len(path), *path]))
    schema_id = _once(
        lambda: registry.register_schema(subject, _file_schema(descriptor.file, registry))
    )

    def frame(content: bytes) -> bytes:
        return _framed(schema_id(), prefix + content)

    def unframe(data: bytes) -> bytes:
        written, content = _unframed(data)
        cursor = Cursor(content)
        length = cursor.read_long()
        if not 0 <= length <= cursor.remaining:
            raise ValueError("truncated")
        indexes = [cursor.read_long() for _ in range(length)] or [0]
        # Another version of the file may have its messages in another order.
        if written == schema_id() and indexes != path:
            raise ValueError("another message of the file")
        return cursor.read(cursor.remaining)

    return frame, unframe


def _file_schema(file: Any, registry: SchemaRegistry) -> Schema:
    """Return the schema of a file; register the files that it imports."""

    @cache  # of files that several import
    def reference(name: str) -> SchemaReference:
        imported = file.pool.FindFileByName(name)
        schema = of(imported)
        registry.register_schema(name, schema)
        return SchemaReference(name, name, registry.lookup_version(name, schema))

    def of(file: Any) -> Schema:
        names = [imported.name for imported in file.dependencies]
        references = (reference(n) for n in names if not n.startswith("google/protobuf/"))
        return Schema(b64encode(file.serialized_pb).decode(), "PROTOBUF", tuple(references))

    return of(file)


def _path_in_file(descriptor: Any) -> list[int]:
    """Return the indexes that lead from the file to a message, the outermost first."""
    outer = descriptor.containing_type
    if outer is not None:
        names = [nested.name for nested in outer.nested_types]
        return [*_path_in_file(outer), names.index(descriptor.name)]
    return [list(descriptor.file.message_types_by_name).index(descriptor.name)]


def _framed(schema_id: int, content: bytes) -> bytes:
    return struct.pack(_FRAME, 0, schema_id) + content


def _unframed(data: bytes) -> tuple[int, bytes]:
    """Return the schema's id and the data."""
    magic, schema_id = struct.unpack(_FRAME, data[:_FRAME_SIZE])
    if magic != 0:
        raise ValueError("not framed")
    return schema_id, data[_FRAME_SIZE:]
