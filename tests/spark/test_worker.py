"""What a worker keeps from task to task."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from thulawa.core.errors import RecordError, ThulawaError
from thulawa.engine import Options
from thulawa.spark import worker
from thulawa.spark.operator import Operator


@pytest.fixture(autouse=True)
def own_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test begin with a worker that has kept nothing."""
    monkeypatch.setattr(worker, "_engines", {})


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


def unreachable() -> Any:
    raise OSError("no such host")


@pytest.mark.parametrize(
    ("resource", "reason"),
    [(unreachable, "OSError: no such host"), (dict, "TypeError: .*dict' object")],
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
    assert closed == ["o1"]
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
