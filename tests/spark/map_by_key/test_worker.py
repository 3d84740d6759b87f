"""The state that a worker retains between tasks."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from thulawa.engine import Options
from thulawa.errors import RecordError, ThulawaError
from thulawa.spark.map_by_key import operator_states, worker
from thulawa.spark.map_by_key.operator import Operator


@pytest.fixture(autouse=True)
def no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test with a worker that has no state."""
    monkeypatch.setattr(operator_states, "_states", {})


def operator(name: str, opened: list[str], closed: list[str]) -> Operator:
    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        opened.append(name)
        yield name
        closed.append(name)

    async def ask(row: Any, client: str) -> str:
        return f"{client} {row.n}"

    return Operator(
        name=name, function=ask, flat=False, keys=("n",), keep=(), options=Options(),
        returns=pa.schema([("answer", pa.string())]), resource=client,
    )  # fmt: skip


@pytest.mark.parametrize("answer", [None, 1.5], ids=["call", "result"])
def test_an_error_names_the_record_that_the_row_was_read_from(answer: float | None) -> None:
    async def ask(row: Any) -> float:
        if row.n != 7:
            return 1
        if answer is None:
            raise LookupError("who is this")
        return answer

    one = Operator(
        name="locate", function=ask, flat=False, keys=("n",), keep=(), options=Options(),
        returns=pa.schema([("answer", pa.int64())]), resource=None,
    )  # fmt: skip
    rows = [{"n": n, "topic": "visits", "partition": n // 5, "offset": n % 5} for n in range(10)]
    with pytest.raises(RecordError, match=r"\(record at offset 2 of visits-1\)"):
        list(worker.process(one, iter([pa.RecordBatch.from_pylist(rows)])))
    bare = pa.RecordBatch.from_pylist([{"n": row["n"]} for row in rows])
    with pytest.raises(RecordError, match=r"\(record at offset 7\)"):
        list(worker.process(one, iter([bare])))


def unreachable() -> Any:
    raise OSError("no such host")


def no_context() -> Any:
    return {}


@pytest.mark.parametrize(
    ("resource", "reason"),
    [(unreachable, "OSError: no such host"), (no_context, "TypeError: .*dict' object")],
)
def test_a_resource_that_does_not_open_is_told_with_the_operator(
    resource: Any, reason: str
) -> None:
    one = replace(operator("one", [], []), resource=resource)
    with pytest.raises(ThulawaError, match=f"one: its resource .*{reason}.*@asynccontextmanager"):
        answers(one)


def answers(one: Operator) -> list[str]:
    out = worker.process(one, iter([pa.RecordBatch.from_pylist([{"n": 1}, {"n": 2}])]))
    return [answer for batch in out for answer in batch.column("answer").to_pylist()]


def until(holds: Callable[[], bool]) -> None:
    """Wait for what the worker's loop does of its own accord."""
    give_up = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_resource_that_is_not_used_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_states, "_IDLE", 0.05)
    opened: list[str] = []
    closed: list[str] = []
    one = operator("one", opened, closed)
    answers(one)
    until(lambda: closed == ["one"])
    assert sorted(answers(one)) == ["one 1", "one 2"]
    assert opened == ["one", "one"]


def test_an_operator_that_is_made_anew_replaces_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operator_states, "_REPLACED", 0.05)
    opened: list[str] = []
    closed: list[str] = []
    for _ in range(15):
        answers(operator("cell", opened, closed))
    until(lambda: len(closed) == 14)
    assert len(opened) == 15


def test_a_resource_that_is_about_to_close_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_states, "_IDLE", 0.0)
    closed: list[str] = []
    opened: list[str] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[list[str]]:
        opened.append("one")
        state = ["open"]
        yield state
        state[0] = "closed"
        closed.append("one")

    async def ask(row: Any, client: list[str]) -> str:
        await asyncio.sleep(0.001)
        return client[0]

    one = replace(operator("one", [], []), resource=client, function=ask)
    for _ in range(50):
        assert answers(one) == ["open", "open"]
    until(lambda: len(closed) == len(opened))


def test_a_replaced_operator_that_is_used_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_states, "_REPLACED", 1.0)
    closed: list[str] = []
    opened: list[str] = []
    first, second = (operator("lookup", opened, closed) for _ in range(2))
    for _ in range(5):
        answers(first)
        answers(second)
    assert (opened, closed) == (["lookup", "lookup"], [])


@pytest.mark.parametrize(
    "shielded", [ZeroDivisionError, asyncio.CancelledError], ids=["gives way", "does not"]
)
def test_a_resource_that_does_not_open_in_time_is_told_with_the_operator(
    shielded: type[BaseException],
) -> None:
    @asynccontextmanager
    async def hanging() -> AsyncIterator[None]:
        until_the_end = time.monotonic() + 5
        while time.monotonic() < until_the_end:
            with suppress(shielded):
                await asyncio.sleep(5)
        yield

    one = operator("one", [], [])
    slow = replace(one, resource=hanging, options=replace(one.options, resource_timeout=0.05))
    with pytest.raises(
        ThulawaError, match=r"one: its resource .*hanging did not open within 0\.05"
    ):
        answers(slow)


def test_a_resource_that_blocks_the_loop_is_told_with_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operator_states, "_BLOCKED", 0.05)

    def blocking() -> Any:
        time.sleep(1)
        return nullcontext()

    one = operator("one", [], [])
    slow = replace(one, resource=blocking, options=replace(one.options, resource_timeout=0.05))
    with pytest.raises(
        ThulawaError, match=r"one: its resource .*blocking .* blocks the event loop"
    ):
        answers(slow)


def test_a_resource_that_does_not_close_in_time_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operator_states, "_REPLACED", 0.01)

    @asynccontextmanager
    async def hanging() -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(60)

    one = operator("one", [], [])
    slow = replace(one, resource=hanging, options=replace(one.options, resource_timeout=0.05))
    answers(slow)
    answers(replace(slow, identity="another"))
    until(lambda: "hanging did not close within 0.05 s" in caplog.text)


def test_all_resources_are_closed_when_a_worker_ends() -> None:
    closed: list[str] = []
    for name in ("one", "two"):
        answers(operator(name, [], closed))
    operator_states.close_all(5)
    assert sorted(closed) == ["one", "two"]


def test_each_task_calls_the_function_that_it_brought() -> None:
    one = operator("one", [], [])

    async def other(row: Any, client: str) -> str:
        return f"{client}, other {row.n}"

    answers(one)
    assert sorted(answers(replace(one, function=other))) == ["one, other 1", "one, other 2"]


def test_a_resource_is_open_from_task_to_task() -> None:
    opened: list[str] = []
    one = operator("one", opened, [])
    assert sorted(answers(one)) == sorted(answers(one)) == ["one 1", "one 2"]
    assert opened == ["one"]


def test_of_many_operators_those_used_last_keep_their_resources() -> None:
    opened: list[str] = []
    closed: list[str] = []
    operators = [operator(f"o{number}", opened, closed) for number in range(17)]
    for one in (*operators[:16], operators[0], operators[16]):
        assert sorted(answers(one)) == [f"{one.name} 1", f"{one.name} 2"]
    until(lambda: closed == ["o1"])
    answers(operators[0])
    assert opened == [one.name for one in operators]


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        (lambda row: row.urgency, r"lane=: AttributeError: 'Row\(n\)' .* no attribute 'urgency'"),
        (lambda row: ["usual"], "lane=: TypeError: unhashable"),
        (lambda row: "other", r"lane=: there is no lane 'other'; the lanes are \['default'\]"),
    ],
    ids=["raises", "unhashable", "unknown"],
)
def test_a_lane_that_cannot_be_told_names_operator_and_row(lane: Any, reason: str) -> None:
    one = replace(operator("one", [], []), lane=lambda row: lane(row) if row.n == 2 else 0)
    one = replace(one, options=replace(one.options, name="one"))
    with pytest.raises(RecordError, match=rf"one: {reason}.*offset 1"):
        answers(one)


@pytest.mark.parametrize(
    "lane",
    [lambda row: row.urgency if row.n == 2 else 0, lambda row: "other" if row.n == 2 else 0],
    ids=["raises", "unknown"],
)
def test_a_lane_that_cannot_be_told_gets_the_answer_of_the_error_policy(lane: Any) -> None:
    one = operator("one", [], [])
    dropping = replace(one, lane=lane, options=replace(one.options, on_error="drop"))
    assert answers(dropping) == ["one 1"]


def test_text_that_is_not_utf8_is_replaced_in_its_row_alone() -> None:
    """Spark casts bytes to strings unchecked; its own functions get U+FFFD for what is no text."""
    texts = pa.array([b"ok", b"\xff", None], pa.binary()).view(pa.string())
    nested = pa.StructArray.from_arrays([texts], ["s"])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], texts)
    batch = pa.RecordBatch.from_arrays([texts, nested, lists], ["n", "in_struct", "in_list"])

    def seen(row: Any) -> str:
        return f"{row.n} {row.in_struct} {row.in_list}"

    one = replace(operator("one", [], []), function=seen, resource=None, keep=("n",))
    (out,) = worker.process(one, iter([batch]))
    assert sorted(out.column("answer").to_pylist()) == [
        "None {'s': None} [None]",
        "ok {'s': 'ok'} ['ok']",
        "\ufffd {'s': '\ufffd'} ['\ufffd']",
    ]
    kept = out.column("n").view(pa.binary()).to_pylist()
    assert sorted(map(str, kept)) == ["None", r"b'\xff'", "b'ok'"]  # as it came
