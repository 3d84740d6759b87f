"""What an application does when its query fails, or cannot be started again; no Spark here."""

from pathlib import Path
from typing import Any

import pytest

from tests.spark.dry import SOON, Application, Query, Start
from thulawa.brokers.embedded import Log
from thulawa.errors import (
    ConfigurationError,
    StateError,
)
from thulawa.spark.micro_batch.program import Program
from thulawa.streams import Materialized, State, StreamsBuilder


def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    failing = Query(ValueError("first"))
    starts: list[Start] = [
        failing,
        LookupError("busy"),
        LookupError("busy"),
        Query(None),
    ]
    application = Application(tmp_path, starts, on_error=SOON).start()
    assert application.await_termination("10 s")
    assert application.state is State.NOT_RUNNING


def test_starts_that_go_on_failing_end_the_application(tmp_path: Path) -> None:
    starts: list[Start] = [Query(ValueError("first")), *[LookupError("busy")] * 9]
    application = Application(tmp_path, starts, on_error=SOON).start()
    with pytest.raises(LookupError, match="busy"):
        application.await_termination("10 s")
    assert application.state is State.ERROR


def test_a_function_is_asked_about_each_error(tmp_path: Path) -> None:
    heard: list[str] = []

    def decide(error: Exception) -> Any:
        heard.append(str(error))
        return "restart" if str(error) == "first" else "stop"

    starts: list[Start] = [Query(ValueError("first")), LookupError("second")]
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


class Watched(Application):
    """Tells which partitions the tasks of each start read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tasks: list[list[Any]] = []

    def _create_query(self, program: Program) -> Any:
        (part,) = program.plan.parts.values()
        self.tasks.append([dict(task) for task in part.tasks])
        return super()._create_query(program)


class Resizing(Query):
    """A query that fails when its topic is made anew, or is gone."""

    def __init__(self, address: str, partitions: int) -> None:
        super().__init__(ValueError("other partitions"))
        self._address, self._partitions = address, partitions

    def wait(self) -> Exception | None:
        with Log(self._address) as log:
            log.delete_topic("in")
            if self._partitions:
                log.create_topic("in", partitions=self._partitions)
        return super().wait()


def test_a_start_after_an_error_takes_new_partitions_in(tmp_path: Path) -> None:
    growing = Resizing(f"file:{tmp_path}/topics", 2)
    application = Watched(tmp_path, [growing, Query(None)], on_error=SOON).start()
    assert application.await_termination("10 s")
    assert application.tasks == [[{"in": (0,)}], [{"in": (0,)}, {"in": (1,)}]]


def test_a_new_partition_ends_an_application_with_state_also_where_errors_start_it_again(
    tmp_path: Path,
) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("counts"))
    growing = Resizing(f"file:{tmp_path}/topics", 2)
    starts = [growing, Query(None)]
    application = Watched(tmp_path, starts, topology=builder.build(), on_error="restart").start()
    with pytest.raises(StateError, match="partition 1 of 'in' is new"):
        application.await_termination("10 s")
    assert len(application.tasks) == 1


def test_a_program_that_cannot_be_made_again_is_a_start_that_fails(tmp_path: Path) -> None:
    losing = Resizing(f"file:{tmp_path}/topics", 0)
    application = Watched(tmp_path, [losing], on_error=SOON).start()
    with pytest.raises(ConfigurationError, match="'in' does not exist"):
        application.await_termination("10 s")
    assert application.state is State.ERROR


def test_restart_in_a_word_is_a_restart(tmp_path: Path) -> None:
    starts: list[Start] = [Query(ValueError("first")), Query(None)]
    application = Application(tmp_path, starts, on_error="restart").start()
    assert application.await_termination("10 s")
    assert application.state is State.NOT_RUNNING


@pytest.mark.parametrize("answer", ["carry on", None, 3])
def test_what_is_no_answer_to_an_error_is_refused(tmp_path: Path, answer: Any) -> None:
    with pytest.raises(ConfigurationError, match="on_error is"):
        Application(tmp_path / "other", [], on_error=answer)
    starts: list[Start] = [Query(ValueError("first"))]
    application = Application(tmp_path, starts, on_error=lambda _: answer).start()
    with pytest.raises(ConfigurationError, match="on_error is"):
        application.await_termination("10 s")


def test_what_has_not_been_started_cannot_be_waited_for(tmp_path: Path) -> None:
    application = Application(tmp_path, [])
    with pytest.raises(ConfigurationError, match="has not been started"):
        application.process_all_available()
    with pytest.raises(ConfigurationError, match="has not been started"):
        application.process_batches(1)
