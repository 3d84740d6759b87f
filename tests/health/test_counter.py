"""Counting in columns has the results of counting one by one."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.health.helpers import model
from thulawa.core.types import TopicPartition
from thulawa.errors import WrongResult
from thulawa.health import Cell, in_columns
from thulawa.health.counter import Counter, Messages, Rule, Since, Totals
from thulawa.health.statuses import Status, statuses

messages = st.lists(st.tuples(st.integers(-50, 400), st.sampled_from("vi")), max_size=60)


def name(value: bytes | None) -> str:
    return {b"v": "valid", b"i": "invalid"}[value or b""]


def count(
    rule: Rule, chunk: list[tuple[int, str]], first: int, since: Since | None = None
) -> Counter:
    counter = Counter(rule, since or Since())
    times = pa.array([time for time, _ in chunk], pa.int64())
    values = pa.array([sign.encode() for _, sign in chunk], pa.binary())
    offsets = pa.array(range(first, first + len(chunk)), pa.int64())
    counter.add(Messages(offsets, times, values.to_pylist() if first % 2 else values))
    return counter


@given(messages=messages, cuts=st.lists(st.integers(0, 60)), expire=st.integers(10, 100))
def test_batches_of_any_size_have_the_same_totals(
    messages: list[tuple[int, str]], cuts: list[int], expire: int
) -> None:
    rule, totals = Rule(name, 10, expire), Totals(TopicPartition("tx", 0), expire)
    edges = sorted({0, len(messages), *(cut for cut in cuts if cut < len(messages))})
    for start, end in pairwise(edges):
        counter = count(rule, messages[start:end], start, totals.since)
        totals.add(counter.added(), position=end)
    signs = {"v": "valid", "i": "invalid"}
    expected = model([(0, time, signs[sign]) for time, sign in messages], 10, expire)
    assert {one.cell: one.value for one in totals.counts()} == expected
    assert totals.position == len(messages)


def test_counted_messages_are_skipped() -> None:
    counter = count(Rule(name, 10, 100), [(0, "v"), (1, "v"), (2, "i")], 7, Since(8, 0))
    assert [(one.status, one.messages, one.offset) for one in counter.added()] == [
        ("invalid", 1, 10),
        ("valid", 1, 9),
    ]


def test_a_late_message_of_an_expired_window_is_not_counted() -> None:
    counter = count(Rule(name, 10, 50), [(100, "v"), (50, "v"), (49, "v"), (200, "v")], 0)
    assert [one.window for one in counter.added()] == [50, 100, 200]
    assert counter.expired == 1


def test_an_expired_window_has_a_last_total_and_then_a_tombstone() -> None:
    totals = Totals(TopicPartition("tx", 0), 50)
    counter = count(Rule(name, 10, 50), [(0, "v"), (100, "v")], 0)
    changes = totals.add(counter.added(), position=2)
    old, new = Cell("tx", 0, 0, "valid"), Cell("tx", 0, 100, "valid")
    assert [(one.cell, one.value) for one in changes] == [(old, 1), (new, 1), (old, None)]
    assert [one.cell for one in totals.counts()] == [new]


def test_a_bad_value_is_invalid_and_a_bad_function_is_an_error() -> None:
    values = pa.array([b"1", b"x", None], pa.binary())
    found = statuses(lambda value: int(value or b"2") > 0, values)
    assert found.to_pylist() == ["valid", "invalid", "valid"]
    with pytest.raises(ZeroDivisionError):
        statuses(lambda value: 1 // 0 > 0, values)


@pytest.mark.parametrize(
    "status",
    [
        lambda _: None,
        lambda _: 3,
        in_columns(lambda values: values.slice(1)),
        in_columns(lambda values: pa.nulls(len(values), pa.bool_())),
    ],
    ids=["none", "number", "short", "nulls"],
)
def test_an_invalid_status_is_rejected(status: Status) -> None:
    with pytest.raises(WrongResult):
        statuses(status, pa.array([b"a", b"b"], pa.binary()))


def test_a_status_function_of_columns() -> None:
    values = pa.array([b"v", b"i", b"v"], pa.binary())
    assert statuses(in_columns(lambda column: pc.equal(column, b"v")), values).to_pylist() == [
        "valid",
        "invalid",
        "valid",
    ]
    named = in_columns(lambda column: column.cast(pa.string()))
    assert statuses(named, values).to_pylist() == ["v", "i", "v"]
