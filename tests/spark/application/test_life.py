"""Whoever waits for an application hears of its end, whatever goes wrong in it; no Spark here."""

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.spark.dry import SOON, Application, Query, RunningQuery
from thulawa.errors import ConfigurationError
from thulawa.spark.micro_batch.program import Program
from thulawa.streams import Restart, State


def failing() -> Query:
    return Query(ValueError("the query's"))


def test_a_listener_that_raises_is_logged_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(new: State, old: State) -> None:
        raise RuntimeError(f"{old} {new}")

    heard: list[State] = []
    application = Application(tmp_path, [failing()])
    application.add_state_listener(listener)
    application.add_state_listener(lambda new, _: heard.append(new))
    with caplog.at_level(logging.ERROR, "thulawa.streams"):
        application.start()
        with pytest.raises(ValueError, match="the query's"):
            application.await_termination("10 s")
    assert heard == [State.REBALANCING, State.RUNNING, State.PENDING_ERROR, State.ERROR]
    assert "listener" in caplog.text


def test_what_on_error_raises_ends_the_application(tmp_path: Path) -> None:
    def decide(_: Exception) -> Any:
        raise LookupError("the policy's")

    application = Application(tmp_path, [failing()], on_error=decide).start()
    with pytest.raises(LookupError, match="the policy's") as raised:
        application.await_termination("10 s")
    assert isinstance(raised.value.__cause__, ValueError)
    assert application.state is State.ERROR


@pytest.mark.parametrize(
    "options", [{"first": "soon"}, {"longest": "never"}, {"attempts": -1}, {"attempts": "many"}]
)
def test_a_restart_is_checked_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Restart(**options)


@pytest.mark.parametrize("state", [State.REBALANCING, State.RUNNING])
def test_a_listener_may_stop_an_application_that_starts(tmp_path: Path, state: State) -> None:
    query = RunningQuery()
    application = Application(tmp_path, [query])

    def listener(new: State, _: State) -> None:
        if new is state:
            application.stop()

    application.add_state_listener(listener)
    application.start()
    assert application.await_termination("10 s")
    assert query.stopped.is_set()
    assert application.state is State.NOT_RUNNING


@pytest.mark.parametrize("state", [State.REBALANCING, State.PENDING_ERROR, State.ERROR])
def test_a_listener_may_stop_an_application_that_fails(tmp_path: Path, state: State) -> None:
    application = Application(
        tmp_path, [failing(), failing()], on_error=Restart(first=1, attempts=1)
    )
    starting = threading.current_thread()
    heard: list[State] = []

    def listener(new: State, _: State) -> None:
        heard.append(new)
        if new is state and threading.current_thread() is not starting:
            application.stop()

    application.add_state_listener(listener)
    application.start()
    ended = threading.Event()

    def wait() -> None:
        with suppress(ValueError):
            application.await_termination()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(10)
    assert application.stop("10 s")
    assert state in heard
    assert application.state is State.NOT_RUNNING


def test_an_application_that_is_stopped_while_it_starts_ends(tmp_path: Path) -> None:
    query, answers = RunningQuery(), []

    class Slow(Application):
        def _create_query(self, program: Program) -> Any:
            stopping = threading.Thread(target=lambda: answers.append(self.stop("10 s")))
            stopping.start()
            assert self._stopping.wait(10)
            self.stopping = stopping
            return super()._create_query(program)

    application = Slow(tmp_path, [query])
    application.start()
    application.stopping.join(20)
    assert answers == [True]
    assert query.stopped.is_set()
    assert application.state is State.NOT_RUNNING


def test_an_application_that_is_stopped_before_it_starts_has_ended(tmp_path: Path) -> None:
    application = Application(tmp_path, [])
    assert application.stop("10 s")
    assert application.state is State.NOT_RUNNING


def test_a_start_that_fails_is_an_end(tmp_path: Path) -> None:
    application = Application(tmp_path, [LookupError("no")], on_error=SOON)
    with pytest.raises(LookupError):
        application.start()
    with pytest.raises(LookupError):
        application.await_termination("10 s")
    assert application.state is State.ERROR
