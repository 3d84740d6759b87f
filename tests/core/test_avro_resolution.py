"""Avro's schema resolution: data of one schema is read as another."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.core.avro import Avro


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def resolve(written: Any, wanted: Any, value: Any) -> Any:
    writer = Avro(json.dumps(written))
    return Avro(json.dumps(wanted)).reader(writer)(writer.write(value))


A = field("a", "int")
LIST = {
    "type": "record",
    "name": "n.L",
    "fields": [field("v", "int"), field("next", ["null", "L"])],
}
RESOLVED: dict[str, tuple[Any, Any, Any, Any]] = {
    "int as long": ("int", "long", 7, 7),
    "int as double": ("int", "double", 7, 7.0),
    "long as float": ("long", "float", 7, 7.0),
    "float as double": ("float", "double", 0.5, 0.5),
    "string as bytes": ("string", "bytes", "ä", "ä".encode()),
    "bytes as string": ("bytes", "string", "ä".encode(), "ä"),
    "a field left out": (record(A, field("b", "string")), record(A), {"a": 1, "b": "x"}, {"a": 1}),
    "a field in the middle left out": (
        record(field("x", LIST), A),
        record(A),
        {"x": {"v": 1, "next": {"v": 2, "next": None}}, "a": 9},
        {"a": 9},
    ),
    "a field with a default": (
        record(A),
        record(A, field("b", "bytes", default="\u00ff")),
        {"a": 1},
        {"a": 1, "b": b"\xff"},
    ),
    "a default of a union": (
        record(A),
        record(A, field("b", ["null", "string"], default=None)),
        {"a": 1},
        {"a": 1, "b": None},
    ),
    "a default that is a record": (
        record(A),
        record(A, field("b", record(field("c", "double"), name="S"), default={"c": 1})),
        {"a": 1},
        {"a": 1, "b": {"c": 1.0}},
    ),
    "fields in another order": (
        record(A, field("b", "string")),
        record(field("b", "string"), field("a", "long")),
        {"a": 1, "b": "x"},
        {"b": "x", "a": 1},
    ),
    "a field by its alias": (
        record(A),
        record(field("new", "int", aliases=["a"])),
        {"a": 1},
        {"new": 1},
    ),
    "a record by its alias": (
        record(A, name="Old"),
        record(A, name="New", aliases=["Old"]),
        {"a": 1},
        {"a": 1},
    ),
    "another namespace": (record(A, namespace="x"), record(A, namespace="y"), {"a": 1}, {"a": 1}),
    "a value as an optional one": ("string", ["null", "string"], "x", "x"),
    "an optional value that is there": (["null", "string"], "string", "x", "x"),
    "a union in another order": (["int", "string"], ["string", "double", "int"], 3, 3),
    "no branch of its own": ("int", ["null", "double", "long"], 3, 3.0),
    "strings beside bytes": (["string", "bytes"], ["null", "bytes", "string"], "x", "x"),
    "bytes beside strings": (["string", "bytes"], ["null", "string", "bytes"], b"\xff", b"\xff"),
    "a branch that is widened": (["null", "int"], ["null", "double"], 3, 3.0),
    "items": ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1], [1.0]),
    "values": (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "long"},
        {"a": 1},
        {"a": 1},
    ),
    "a symbol": (enum("A", "B"), enum("B", "A"), "B", "B"),
    "a symbol that is new": (enum("A", "B"), enum("A", default="A"), "B", "A"),
    "a type that refers to itself": (
        LIST,
        {**LIST, "fields": [*LIST["fields"], field("more", "int", default=0)]},
        {"v": 1, "next": {"v": 2, "next": None}},
        {"v": 1, "next": {"v": 2, "next": None, "more": 0}, "more": 0},
    ),
    "a logical type": ({"type": "long", "logicalType": "timestamp-millis"}, "long", 5, 5),
}
IMPOSSIBLE: dict[str, tuple[Any, Any, Any]] = {
    "text as a number": ("string", "long", "x"),
    "a long as an int": ("long", "int", 1),
    "a field without a default": (record(A), record(A, field("b", "int")), {"a": 1}),
    "another record": (record(A), record(A, name="Other"), {"a": 1}),
    "an optional value that is missing": (["null", "string"], "string", None),
    "no branch": ("boolean", ["null", "string"], True),
    "a symbol that nobody knows": (enum("A", "B"), enum("A"), "B"),
    "a fixed type as an enum": (
        {"type": "fixed", "name": "E", "size": 1},
        enum("A", "B"),
        b"A",
    ),
    "another size": (
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "fixed", "name": "F", "size": 3},
        b"ab",
    ),
}


@pytest.mark.parametrize(("written", "wanted", "value", "result"), RESOLVED.values(), ids=RESOLVED)
def test_data_is_resolved_to_the_reader_schema(
    written: Any, wanted: Any, value: Any, result: Any
) -> None:
    read = resolve(written, wanted, value)
    assert (read, repr(read)) == (result, repr(result))


@pytest.mark.parametrize(("written", "wanted", "value"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_data_that_cannot_be_resolved_is_rejected(written: Any, wanted: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be read as this one|does not know"):
        resolve(written, wanted, value)


def test_a_skipped_field_must_be_valid() -> None:
    written = Avro(json.dumps(record(field("s", "string"), A)))
    with pytest.raises(ValueError, match="utf-8"):
        Avro(json.dumps(record(A))).reader(written)(b"\x02\xff\x02")


def test_every_record_has_its_own_copy_of_a_default() -> None:
    wanted = record(A, field("b", {"type": "array", "items": "int"}, default=[]))
    read = Avro(json.dumps(wanted)).reader(Avro(json.dumps(record(A))))
    read(b"\x02")["b"].append(1)
    assert read(b"\x02") == {"a": 1, "b": []}


@given(st.binary(max_size=40))
def test_random_bytes_are_resolved_or_raise_a_value_error(data: bytes) -> None:
    read = Avro(json.dumps(record(A))).reader(Avro(json.dumps(record(field("l", LIST), A))))
    with suppress(ValueError):
        assert set(read(data)) == {"a"}
