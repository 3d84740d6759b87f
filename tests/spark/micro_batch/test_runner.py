"""A query ends when Spark says so, or is stopped; what merely looks at it ends nothing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from thulawa.errors import QueryFailed
from thulawa.runtime.batch_size import AdaptiveBatchSize
from thulawa.spark.micro_batch import runner as running
from thulawa.spark.micro_batch.runner import BatchSizeController, StreamsQuery
from thulawa.spark.session.worker_pools import WorkerPoolSlot


class SparkQuery:
    """What Spark gives for a query: it ends after so many looks, by an error if there is one.

    As with Spark's own, a wait with a time limit is over when the query is told to end or has
    failed; only one without tells that another may start from its checkpoint.
    """

    def __init__(self, looks: int = 2, error: BaseException | None = None) -> None:
        self._looks, self._error = looks, error
        self.stopped = 0
        self.let_go = False
        self._jsq = SimpleNamespace(lastProgress=lambda: None)

    def awaitTermination(self, limit: float | None = None) -> bool:  # noqa: N802 Spark's name
        self._looks = -1 if limit is None else self._looks - 1
        self.let_go = limit is None
        if self._looks < 0 and self._error is not None:
            raise self._error
        return self._looks < 0

    def stop(self) -> None:
        self.stopped += 1


class Writer:
    """What a query is started with; it takes every option."""

    def __init__(self, query: SparkQuery) -> None:
        self._query = query

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def start(self) -> SparkQuery:
        return self._query


class Topics:
    """A broker that only commits, and its Spark formats."""

    def __init__(self, query: SparkQuery, commit: Any) -> None:
        self._query = query
        self.broker = SimpleNamespace(commit=commit)

    def reader(self, *_: Any) -> None: ...

    def write(self, *_: Any) -> Writer:
        return Writer(self._query)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("active_session", "scheduler_pool"):
        monkeypatch.setattr(running, name, lambda *_: nullcontext())
    monkeypatch.setattr(running, "compile_program", lambda *_: None)


def started(topics: Topics, max_records: Any = None) -> StreamsQuery:
    program: Any = SimpleNamespace(
        application_id="app", topics=("in",), internal_topics=(), has_timers=False
    )
    offsets = iter(range(1000))
    checkpoint: Any = SimpleNamespace(
        query_path="",
        query="q",
        starts=dict,
        last_batch=lambda: 0,
        offsets_of=lambda _: {"in": {0: next(offsets)}},
    )
    made: Any = topics
    nothing: Any = None
    return StreamsQuery(
        nothing,
        program,
        made,
        checkpoint,
        max_records=max_records,
        trigger=None,
        weight=1,
        reports={},
    )


def test_a_look_that_fails_is_logged_once_and_the_query_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def commit(*_: Any, **__: Any) -> None:
        raise OSError("no brokers")

    spark_query = SparkQuery(looks=3)
    with caplog.at_level(logging.WARNING, "thulawa.streams"):
        assert started(Topics(spark_query, commit)).wait() is None
    assert spark_query.stopped == 0
    assert len(caplog.records) == 1
    assert "no brokers" in caplog.text


def test_a_look_that_fails_keeps_no_other_from_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def fail(*_: Any) -> None:
        raise OSError("no report")

    monkeypatch.setattr(BatchSizeController, "update", fail)
    query = started(
        Topics(SparkQuery(looks=3), lambda *one, **_: told.append(one)), AdaptiveBatchSize()
    )
    assert query.wait() is None
    assert len(told) == 4


def test_an_error_that_ends_the_query_is_given() -> None:
    error = StreamingQueryException("it failed")
    spark_query = SparkQuery(error=error)
    found = started(Topics(spark_query, None)).wait()
    assert isinstance(found, QueryFailed)
    assert (str(found), found.__cause__) == ("StreamingQueryException: it failed", error)
    assert spark_query.stopped == 0


@pytest.mark.parametrize("error", [None, StreamingQueryException("it failed")])
def test_a_query_has_ended_when_spark_has_let_go_of_it(error: Exception | None) -> None:
    spark_query = SparkQuery(error=error)
    started(Topics(spark_query, None)).wait()
    assert spark_query.let_go


def test_a_query_that_cannot_be_waited_for_is_stopped() -> None:
    spark_query = SparkQuery(error=ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        started(Topics(spark_query, None)).wait()
    assert spark_query.stopped == 1


def test_a_query_that_cannot_be_stopped_either_ends_with_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(_: SparkQuery) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(SparkQuery, "stop", stop)
    with pytest.raises(ConnectionRefusedError):
        started(Topics(SparkQuery(error=ConnectionRefusedError()), None)).wait()


def test_a_query_is_stopped_when_its_making_fails_after_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def gone(*_: Any) -> Iterator[None]:
        yield
        raise OSError("no JVM")

    monkeypatch.setattr(running, "active_session", gone)
    before = WorkerPoolSlot()
    before.release()
    spark_query = SparkQuery()
    with pytest.raises(OSError, match="no JVM"):
        started(Topics(spark_query, None))
    assert spark_query.stopped == 1
    after = WorkerPoolSlot()
    after.release()
    assert after.number == before.number


def test_a_query_whose_end_is_found_twice_leaves_its_seat_once() -> None:
    first = started(Topics(SparkQuery(), None))
    first.wait()
    held = WorkerPoolSlot()
    first.wait()
    other = WorkerPoolSlot()
    assert other.number != held.number
    held.release()
    other.release()
