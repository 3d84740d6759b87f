"""What a worker keeps from task to task."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

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
