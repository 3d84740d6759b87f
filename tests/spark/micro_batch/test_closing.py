"""What a program opens is closed where its task is let go: after a failure, at the next start."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.spark.dry import DryQuery, Input
from thulawa.errors import ProcessingError
from thulawa.spark.micro_batch import task_host as hosting
from thulawa.streams import Processor, Record, StreamsBuilder

EVENTS: list[str] = []
GOOD = {("in", 0): [Input(0, 0, b"k", b'"good"')]}
BAD = {("in", 0): [Input(1, 0, b"k", b'"bad"')]}


@pytest.fixture(autouse=True)
def fresh_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_tasks", {})
    EVENTS.clear()


class Failing(Processor[str, str, str, str]):
    def init(self, context: Any) -> None:
        super().init(context)
        EVENTS.append("init")

    def process(self, record: Record[str, str]) -> None:
        if record.value == "bad":
            raise ValueError(record.value)
        self.context.forward(record)

    def close(self) -> None:
        EVENTS.append("close")


class BadlyClosed(Failing):
    def close(self) -> None:
        self.context.forward(Record("k", "at the end", 0))
        super().close()
        raise OSError("gone")


@asynccontextmanager
async def resource() -> AsyncIterator[None]:
    EVENTS.append("init")
    try:
        yield
    finally:
        EVENTS.append("close")


async def call(value: str, opened: Any) -> str:
    if value == "bad":
        raise ValueError(value)
    return value


def processing(supplier: Any = Failing, application: str = "app") -> DryQuery:
    builder = StreamsBuilder()
    builder.stream("in").process(supplier).to("out")
    return DryQuery(builder.build(), {"in": 1}, application=application)


def calling() -> DryQuery:
    builder = StreamsBuilder()
    builder.stream("in").map_values_async(call, resource=resource).to("out")
    return DryQuery(builder.build(), {"in": 1})


def test_a_processor_is_kept_over_batches_and_closed_at_the_next_start() -> None:
    query = processing()
    query.batch(GOOD)
    query.batch(GOOD)
    assert EVENTS == ["init"]
    query.restart()
    query.batch(GOOD)
    assert EVENTS == ["init", "close", "init"]


def test_what_an_application_left_is_closed_when_another_gets_its_worker() -> None:
    processing().batch(GOOD)
    processing(application="other").batch(GOOD)
    assert EVENTS == ["init", "close", "init"]


@pytest.mark.parametrize("make", [processing, calling])
def test_what_was_opened_is_closed_when_a_batch_fails(make: Any) -> None:
    query = make()
    with pytest.raises(ProcessingError):
        query.batch(BAD)
    assert EVENTS == ["init", "close"]


def test_an_attempt_that_came_to_nothing_lets_its_task_go() -> None:
    query = processing()
    query.batch(GOOD)
    query.attempt(GOOD)  # is not committed
    query.batch(GOOD)
    assert EVENTS == ["init", "close", "init"]


def test_what_closing_does_changes_nothing_and_hides_no_error() -> None:
    query = processing(BadlyClosed)
    with pytest.raises(ProcessingError):
        query.batch(BAD)
    query.attempt(GOOD)
    assert [row["value"] for row in query.batch(GOOD)] == [b'"good"']
