"""Avro: examples of the specification, round trips, and hostile data."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.core.avro import Avro
from thulawa.core.registry import MemorySchemaRegistry
from thulawa.core.serdes import Serdes
from thulawa.errors import (
    ConfigurationError,
    SerializationError,
)

RECORD = json.dumps(
    {
        "type": "record",
        "name": "test",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
    }
)
TREE = json.dumps(
    {
        "type": "record",
        "name": "Node",
        "namespace": "org.example",
        "fields": [
            {"name": "value", "type": "int"},
            {"name": "next", "type": ["null", "Node"]},
        ],
    }
)
EVERYTHING = json.dumps(
    {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "i", "type": "int"},
            {"name": "l", "type": "long"},
            {"name": "d", "type": "double"},
            {"name": "t", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "y", "type": "bytes"},
            {"name": "o", "type": ["null", "boolean", "string"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "a", "type": {"type": "array", "items": "int"}},
            {"name": "m", "type": {"type": "map", "values": "E"}},
        ],
    }
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INTS = st.integers(-(2**31), 2**31 - 1)
SYMBOLS = st.sampled_from(["A", "B"])


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        ('"long"', 0, b"\x00"),
        ('"long"', -1, b"\x01"),
        ('"long"', 1, b"\x02"),
        ('"long"', -64, b"\x7f"),
        ('"long"', 64, b"\x80\x01"),
        ('"string"', "foo", b"\x06foo"),
        (RECORD, {"a": 27, "b": "foo"}, b"\x36\x06foo"),
        ('{"type": "array", "items": "long"}', [3, 27], b"\x04\x06\x36\x00"),
        ('["null", "string"]', None, b"\x00"),
        ('["null", "string"]', "a", b"\x02\x02a"),
        ('"boolean"', True, b"\x01"),
        ('"double"', 1.0, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
    ],
)
def test_the_examples_of_the_specification(schema: str, value: Any, data: bytes) -> None:
    avro = Avro(schema)
    assert avro.write(value) == data
    assert avro.read(data) == value


@given(
    st.fixed_dictionaries(
        {
            "i": INTS,
            "l": st.integers(-(2**63), 2**63 - 1),
            "d": st.floats(allow_nan=False),
            "t": TEXT,
            "y": st.binary(),
            "o": st.none() | st.booleans() | TEXT,
            "e": SYMBOLS,
            "f": st.binary(min_size=2, max_size=2),
            "a": st.lists(INTS),
            "m": st.dictionaries(TEXT, SYMBOLS),
        }
    )
)
def test_values_survive_a_round_trip(value: dict[str, Any]) -> None:
    avro = Avro(EVERYTHING)
    assert avro.read(avro.write(value)) == value


@given(st.binary(max_size=40))
def test_random_bytes_are_read_or_raise_a_serialization_error(data: bytes) -> None:
    for schema in (EVERYTHING, TREE, '{"type": "array", "items": "null"}'):
        serde = Serdes.avro(schema)
        try:
            value = serde.loads(data)
        except SerializationError:
            continue
        assert serde.loads(serde.dumps(value)) == value


def test_a_schema_may_refer_to_itself() -> None:
    value = {"value": 1, "next": {"value": 2, "next": None}}
    assert Avro(TREE).read(Avro(TREE).write(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\x36\x06fo",
        b"\x36\x06foo!",
        b"",
        b"\xff" * 20,
        b"\x36\x07foo",
        b"\x36\x06\xff\xff\xff",
    ],
    ids=["truncated", "left over", "empty", "endless number", "negative length", "not UTF-8"],
)
def test_malformed_data_is_rejected(data: bytes) -> None:
    with pytest.raises(SerializationError, match="cannot be read as Avro"):
        Serdes.avro(RECORD).loads(data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("int", b"\x80\x80\x80\x80\x80\x01"),
        ("long", b"\x80" * 9 + b"\x02"),
        ("long", b"\x80" * 10 + b"\x00"),
        ("boolean", b"\x02"),
    ],
    ids=["int", "long", "eleven bytes", "boolean"],
)
def test_a_number_out_of_range_is_rejected(kind: str, data: bytes) -> None:
    with pytest.raises(SerializationError, match="cannot be read as Avro"):
        Serdes.avro(f'"{kind}"').loads(data)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ('["null", "string"]', b"\x01\x02a"),
        ('["null", "string"]', b"\x04\x02a"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', b"\x01"),
        ('{"type": "map", "values": "int"}', b"\x04\x02a\x02\x02a\x04\x00"),
        ('{"type": "array", "items": "int"}', b"\x01\x04\x02\x00"),
    ],
    ids=["negative branch", "no such branch", "negative symbol", "equal keys", "block size"],
)
def test_data_that_fastavro_would_accept_is_rejected(schema: str, data: bytes) -> None:
    with pytest.raises(SerializationError, match="cannot be read as Avro"):
        Serdes.avro(schema).loads(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x03\x04\x02\x04\x00", [1, 2]),
        (b"\x02\x02\x02\x04\x00", [1, 2]),
        (b"\x04\x82\x00\x04\x00", [1, 2]),
    ],
    ids=["block with its size", "two blocks", "number in a long form"],
)
def test_valid_data_in_other_encodings_is_read(data: bytes, value: list[int]) -> None:
    assert Avro('{"type": "array", "items": "int"}').read(data) == value


def test_ten_thousand_levels_are_rejected() -> None:
    data = b"\x02\x02" * 10_000 + b"\x02\x00"
    with pytest.raises(SerializationError):
        Serdes.avro(TREE).loads(data)


def test_a_huge_count_is_rejected_before_allocation() -> None:
    bomb = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    with pytest.raises(SerializationError):
        Serdes.avro('{"type": "array", "items": "null"}').loads(bomb)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ('"int"', 2**31),
        ('"int"', True),
        ('"string"', 5),
        (RECORD, {"a": 1}),
        (RECORD, {"a": 1, "c": "x"}),
        ('["null", "int"]', "text"),
        (EVERYTHING, []),
        ('{"type": "array", "items": "int"}', (1, 2)),
        ('{"type": "array", "items": "int"}', b"ab"),
        ('["null", "string"]', ("string", "a")),
        ('"float"', 1e39),
        ('"double"', "1"),
    ],
)
def test_a_value_of_another_type_is_rejected(schema: str, value: Any) -> None:
    with pytest.raises(SerializationError, match="cannot be written as Avro"):
        Serdes.avro(schema).dumps(value)


@pytest.mark.parametrize(
    ("value", "data"), [(0.5, b"\x00\x00\x00\x00\x3f"), (2**40, b"\x04" + b"\x80" * 5 + b"\x40")]
)
def test_a_union_writes_the_first_branch_that_fits(value: Any, data: bytes) -> None:
    assert Avro('["float", "int", "long", "double"]').write(value) == data


@pytest.mark.parametrize(
    "schema", ["nonsense", '"nonsense"', "5", '{"name": "x"}', '["null", ["int"]]']
)
def test_an_invalid_schema_is_rejected_when_created(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        Avro(schema)


def test_data_of_another_schema_is_read_as_this_one() -> None:
    registry = MemorySchemaRegistry()
    old = Serdes.avro('"long"', registry=registry, subject="in-value")
    new = Serdes.avro('"double"', registry=registry, subject="in-value")
    data = old.dumps(5)
    assert data == b"\x00\x00\x00\x00\x01\x0a"
    assert new.loads(data) == 5.0
    assert isinstance(new.loads(data), float)
    assert new.loads(new.dumps(0.5)) == 0.5
    with pytest.raises(SerializationError):
        new.loads(b"\x00\x00\x00\x00\x09\x0a")
    with pytest.raises(SerializationError):
        new.loads(b"\x01\x00\x00\x00\x01\x0a")
    with pytest.raises(SerializationError):
        new.loads(b"\x00\x00")


def test_protobuf_messages_are_written_by_their_own_methods() -> None:
    class Message:
        data = b""

        def SerializeToString(self) -> bytes:  # noqa: N802 protobuf's name
            return self.data

        def ParseFromString(self, data: bytes) -> int:  # noqa: N802 protobuf's name
            self.data = data[:3]
            return len(self.data)

    serde = Serdes.protobuf(Message)
    read = serde.loads(b"abc")
    assert read is not None
    assert serde.dumps(read) == b"abc"
    with pytest.raises(SerializationError):
        serde.loads(b"abcd")


@pytest.mark.parametrize("items", ['"null"', '{"type": "record", "name": "E", "fields": []}'])
def test_reading_items_without_bytes_takes_linear_time(items: str) -> None:
    avro = Avro(f'{{"type": "array", "items": {items}}}')
    block = b"\xd0\x0f"  # 1,000 entries
    for blocks in (500, 1_000, 2_000):
        with pytest.raises(ValueError, match="more entries than bytes"):
            avro.read(block * blocks + b"\x00")


def test_the_number_of_nulls_is_bounded_by_the_data_plus_a_thousand() -> None:
    avro = Avro('{"type": "array", "items": "null"}')
    assert len(avro.read(avro.write([None] * 1_000))) == 1_000
    with pytest.raises(ValueError, match="more entries than bytes"):
        avro.read(b"\xd0\x0f" * 2 + b"\x00")
    pairs = Avro('{"type": "array", "items": {"type": "array", "items": "null"}}')
    assert pairs.read(pairs.write([[None] * 20] * 40)) == [[None] * 20] * 40
