"""Serdes: round trips, and values and data that are rejected."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from thulawa.core.records import Window, Windowed
from thulawa.core.registry import MemorySchemaRegistry
from thulawa.core.serdes import Serdes
from thulawa.errors import SerializationError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), inner
    ),
)  # fmt: skip


@given(JSON)
def test_json_survives_a_round_trip(value: Any) -> None:
    serde = Serdes.json()
    assert serde.loads(serde.dumps(value)) == value


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary())
def test_numbers_and_bytes_survive_a_round_trip(whole: int, real: float, data: bytes) -> None:
    assert Serdes.long().loads(Serdes.long().dumps(whole)) == whole
    assert Serdes.double().loads(Serdes.double().dumps(real)) == real
    assert Serdes.byte_array().loads(Serdes.byte_array().dumps(data)) == data


def test_windowed_keys_survive_a_round_trip() -> None:
    key = Windowed("k", Window(5, 9))
    session = Serdes.session_windowed(Serdes.string())
    assert session.loads(session.dumps(key)) == key
    time = Serdes.time_windowed(Serdes.string(), 4)
    assert time.loads(time.dumps(key)) == key
    assert time.dumps(key) == b"k" + bytes(7) + b"\x05"


def test_numbers_have_the_bytes_of_kafka() -> None:
    assert Serdes.long().dumps(1) == bytes(7) + b"\x01"
    assert Serdes.double().dumps(1.0) == b"\x3f\xf0" + bytes(6)
    assert Serdes.string().dumps("ä") == b"\xc3\xa4"


@pytest.mark.parametrize(
    "serde", [Serdes.json(), Serdes.long(), Serdes.string(), Serdes.byte_array(), Serdes.double()]
)
def test_none_is_null(serde: Any) -> None:
    assert serde.dumps(None) is None
    assert serde.loads(None) is None


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Serdes.json(), {1, 2}),
        (Serdes.json(), float("inf")),
        (Serdes.long(), 2**63),
        (Serdes.long(), "1"),
        (Serdes.string(), 5),
        (Serdes.byte_array(), "text"),
        (Serdes.string(), "\ud800"),
    ],
)
def test_a_value_that_cannot_be_written_is_rejected(serde: Any, value: Any) -> None:
    with pytest.raises(SerializationError, match="cannot be written"):
        serde.dumps(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (Serdes.long(), b"short"),
        (Serdes.string(), b"\xff"),
        (Serdes.json(), b"{]"),
        (Serdes.double(), b""),
    ],
)
def test_data_that_cannot_be_read_is_rejected(serde: Any, data: bytes) -> None:
    with pytest.raises(SerializationError, match="cannot be read"):
        serde.loads(data)


@pytest.mark.parametrize("number", [0, 7, 10**17, 10**18, 10**30])
def test_json_reads_integers_of_any_size(number: int) -> None:
    assert Serdes.json().loads(b"%d" % number) == number


@pytest.mark.parametrize("text", [b"007", b"00", b"1_0", b"\xd9\xa1", b"+1", b""])
def test_json_rejects_numbers_that_only_python_accepts(text: bytes) -> None:
    with pytest.raises(SerializationError):
        Serdes.json().loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a" : 1, "a":2}',
        b'{"b":"\\u003a","a":1,"a":2}',
        b'[{"b":{"a":"x:y","a":"x:y"}}]',
        b'{"a":1,"\\u0061":2}',
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b'"\x01"',
        b'{"\xff":1}',
        b"\xef\xbb\xbf1",
        b"[1,]",
    ],
)
def test_json_that_is_not_strict_is_rejected(text: bytes) -> None:
    with pytest.raises(SerializationError):
        Serdes.json().loads(text)


@pytest.mark.parametrize(
    ("value", "data"),
    [(1e16, b"1e+16"), (1e-05, b"1e-05"), ({"é": [None, True]}, '{"é":[null,true]}'.encode())],
)
def test_json_output_has_canonical_bytes(value: Any, data: bytes) -> None:
    assert Serdes.json().dumps(value) == data


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":"\\u003a"}', {"a": ":"}),
        (b'{"at":"12:30","b" : {"c":":"}}', {"at": "12:30", "b": {"c": ":"}}),
        (b'"\\ud800"', "\ud800"),
    ],
)
def test_json_with_colons_and_escapes_is_read(data: bytes, value: Any) -> None:
    assert Serdes.json().loads(data) == value


def test_core_is_imported_without_the_libraries_of_serdes() -> None:
    program = (
        "import sys\n"
        "for name in ('fastavro', 'confluent_kafka', 'google.protobuf'):\n"
        "    sys.modules[name] = None\n"
        "from thulawa.core.serdes import Serdes\n"
        "from thulawa.core.registry import HttpSchemaRegistry\n"
        "assert Serdes.json().dumps([1]) == b'[1]'\n"
        "HttpSchemaRegistry('http://localhost:1')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_json_that_could_not_be_read_again_is_not_written_whatever_the_recursion_limit() -> None:
    value: Any = []
    for _ in range(500):
        value = [value]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5_000)
    try:
        assert Serdes.json().dumps(value[0]) == b"[" * 500 + b"]" * 500
        with pytest.raises(SerializationError, match="cannot be written as JSON"):
            Serdes.json().dumps(value)
    finally:
        sys.setrecursionlimit(limit)


def test_json_may_be_500_levels_deep_whatever_the_recursion_limit() -> None:
    serde = Serdes.json()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        assert serde.loads(b"[" * 500 + b"]" * 500) is not None
        with pytest.raises(SerializationError):
            serde.loads(b"[" * 501 + b"]" * 501)
        assert serde.loads(b'["' + b"[" * 10_000 + b'", "a\\"[["]') is not None
        assert len(serde.loads(b"[" + b"[]," * 1_000 + b"[]]") or ()) == 1_001
    finally:
        sys.setrecursionlimit(limit)


PICKLED = {
    "text": (Serdes.string(), "k"),
    "bytes": (Serdes.byte_array(), b"k"),
    "long": (Serdes.long(), 7),
    "double": (Serdes.double(), 0.5),
    "json": (Serdes.json(), {"a": [1]}),
    "window": (Serdes.time_windowed(Serdes.string(), 4), Windowed("k", Window(5, 9))),
    "session": (Serdes.session_windowed(Serdes.long()), Windowed(1, Window(5, 9))),
    "avro": (Serdes.avro('{"type": "array", "items": ["double", "float", "string"]}'), [0.5, "a"]),
    "framed avro": (
        Serdes.avro('"double"', registry=MemorySchemaRegistry(), subject="s-value"),
        0.5,
    ),
}


@pytest.mark.parametrize("kind", PICKLED)
def test_serdes_can_be_sent_to_workers(kind: str) -> None:
    serde, value = PICKLED[kind]
    arrived = cloudpickle.loads(cloudpickle.dumps(serde))  # type: ignore[no-untyped-call]
    assert arrived.loads(arrived.dumps(value)) == value


@given(st.lists(st.sampled_from([b"1", b"22", b"0", b"01", b"1,2", b"", b"-3", b'"a"', b"1" * 30])))
def test_a_column_is_read_like_single_values(data: list[bytes]) -> None:
    serde = Serdes.json()

    def each() -> list[Any] | None:
        try:
            return [serde.deserialize(one) for one in data]
        except ValueError:
            return None

    try:
        many = serde.load_column(data)
    except ValueError:
        many = None
    assert many == each()


@given(st.lists(st.integers() | st.booleans() | st.text() | st.none()))
def test_a_column_is_written_like_single_values(values: list[Any]) -> None:
    serde = Serdes.json()
    assert serde.dump_column(values) == [serde.dumps(value) for value in values]


@given(st.lists(st.integers()))
def test_a_column_of_integers_is_written_like_single_values(values: list[int]) -> None:
    serde = Serdes.json()
    assert serde.dump_column(values) == [serde.dumps(value) for value in values]
