"""What an application does when its query fails, or cannot be started again; no Spark here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thulawa.app import Restart, State, Streams
from thulawa.dsl import StreamsBuilder
from thulawa.log import Log


class Query:
    """A query that ends as it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def wait(self) -> Exception | None:
        return self._error

    def stop(self) -> None: ...


class Application(Streams):
    """An application whose queries are made up: each start gives the next, or raises it."""

    def __init__(self, folder: Path, starts: list[Query | Exception], **options: Any) -> None:
        with Log(f"file:{folder}/topics") as log:
            log.create_topic("in")
        builder = StreamsBuilder()
        builder.stream("in").to("out")
        super().__init__(
            builder.build(),
            application_id="app",
            log=f"file:{folder}/topics",
            checkpoint=str(folder / "checkpoint"),
            **options,
        )
        self._starts: Iterator[Query | Exception] = iter(starts)

    def _started(self) -> Any:
        start = next(self._starts)
        if isinstance(start, Exception):
            raise start
        return start


SOON = Restart(first=1, longest=2, attempts=3)


def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    failing = Query(ValueError("first"))
    starts: list[Query | Exception] = [
        failing,
        LookupError("busy"),
        LookupError("busy"),
        Query(None),
    ]
    application = Application(tmp_path, starts, on_error=SOON).start()
    assert application.await_termination("10 s")
    assert application.state is State.NOT_RUNNING


def test_starts_that_go_on_failing_end_the_application(tmp_path: Path) -> None:
    starts: list[Query | Exception] = [Query(ValueError("first")), *[LookupError("busy")] * 9]
    application = Application(tmp_path, starts, on_error=SOON).start()
    with pytest.raises(LookupError, match="busy"):
        application.await_termination("10 s")
    assert application.state is State.ERROR


def test_a_function_is_asked_about_each_error(tmp_path: Path) -> None:
    heard: list[str] = []

    def decide(error: Exception) -> Any:
        heard.append(str(error))
        return "restart" if str(error) == "first" else "stop"

    starts: list[Query | Exception] = [Query(ValueError("first")), LookupError("second")]
    application = Application(tmp_path, starts, on_error=decide).start()
    with pytest.raises(LookupError, match="second"):
        application.await_termination("10 s")
    assert heard == ["first", "second"]


class LostQuery(Query):
    """What is left of a query when Spark itself has gone."""

    def wait(self) -> Exception | None:
        raise ConnectionRefusedError


def test_an_application_whose_spark_has_gone_ends_with_an_error(tmp_path: Path) -> None:
    application = Application(tmp_path, [LostQuery(None)]).start()
    with pytest.raises(ConnectionRefusedError):
        application.await_termination("10 s")
    assert application.state is State.ERROR
