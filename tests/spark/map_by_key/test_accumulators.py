"""Accumulators of Spark that a function, or its resource, adds to count every call."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.accumulators import Accumulator, AddingAccumulatorParam, _accumulatorRegistry
from pyspark.sql import SparkSession

from thulawa.engine import Retry
from thulawa.spark.map_by_key.accumulators import adopt_accumulators
from thulawa.spark.map_by_key.api import map_by_key

ROWS, TASKS = 600, 6


def mapping(function: Any, **choices: Any) -> Any:
    return map_by_key(
        function, key="id", returns="answer long", order="none", retry=Retry(attempts=2, first=0),
        **choices,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_each_attempt_of_each_task_counts(spark: SparkSession, kind: str) -> None:
    calls = spark.sparkContext.accumulator(0)
    failed: set[int] = set()

    def plain(row: Any) -> int:
        sys.setswitchinterval(1e-6)  # threads take turns as often as they can
        calls.add(1)
        if row.id % 10 == 0 and row.id not in failed:
            failed.add(row.id)
            raise ValueError("once")
        return int(row.id)

    async def coroutine(row: Any) -> int:
        await asyncio.sleep(0)
        return plain(row)

    rows = spark.range(0, ROWS, 1, TASKS)
    mapped = rows.transform(mapping(coroutine if kind == "coroutine" else plain))
    assert mapped.count() == ROWS
    assert calls.value == ROWS + ROWS // 10


def test_each_batch_of_a_stream_counts(spark: SparkSession, tmp_path: Path) -> None:
    calls = spark.sparkContext.accumulator(0)
    opened = spark.sparkContext.accumulator(0)

    class Client:
        """A client that counts its own calls; it stays open from batch to batch."""

        async def get(self, number: int) -> int:
            opened.add(1)
            return number

    @asynccontextmanager
    async def client() -> AsyncIterator[Client]:
        yield Client()

    async def ask(row: Any, client: Any) -> int:
        calls.add(1)
        return int(await client.get(row.id))

    spark.range(0, ROWS, 1, 5).write.parquet(f"{tmp_path}/rows")
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    mapped = reader.parquet(f"{tmp_path}/rows").transform(mapping(ask, resource=client))
    writer = mapped.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    query.awaitTermination()
    assert len(query.recentProgress) >= 5
    assert (calls.value, opened.value) == (ROWS, ROWS)


def test_accumulators_of_earlier_tasks_have_the_value_of_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.accumulators._accumulatorRegistry", _accumulatorRegistry)
    made = []
    for task in range(3):
        _accumulatorRegistry.clear()
        made.append(Accumulator(4711, 0, AddingAccumulatorParam(0)))
        made[-1]._deserialized = True
        _accumulatorRegistry[4711] = made[-1]
        adopt_accumulators()
        for one in made:
            one += 1  # noqa: PLW2901 as users write it
        assert made[-1]._value == task + 1
    _accumulatorRegistry.clear()


class Interrupted(AddingAccumulatorParam[int]):
    """Calls a function while a term is added."""

    meanwhile: Callable[[], object] = int

    def addInPlace(self, value1: int, value2: int) -> int:  # noqa: N802 Spark's name
        self.meanwhile()
        return value1 + value2


@pytest.mark.timeout(20)
@pytest.mark.parametrize("way", ["signal handler", "__del__"])
def test_adding_from_a_signal_handler_or_a_finalizer_while_adding_does_not_deadlock(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    param = Interrupted(0)
    inner, outer = Accumulator(4712, 0, AddingAccumulatorParam(0)), Accumulator(4713, 0, param)
    monkeypatch.setattr("pyspark.accumulators._accumulatorRegistry", {4712: inner, 4713: outer})
    adopt_accumulators()

    class AddsWhenDeleted:
        def __del__(self) -> None:
            inner.add(1)

    before = signal.signal(signal.SIGUSR1, lambda *_: inner.add(1))
    raising = partial(signal.raise_signal, signal.SIGUSR1)
    param.meanwhile = AddsWhenDeleted if way == "__del__" else raising
    try:
        outer.add(5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (inner._value, outer._value) == (1, 5)
