"""What is not said about tasks is as `Streams` has it; no Spark here."""

from pathlib import Path

import pytest

from tests.app.dry import Application
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.options import TaskOptions


@pytest.mark.parametrize(
    ("said", "commit", "max_ahead"),
    [
        (None, "batch", "1 day"),
        (TaskOptions(handlers=Handlers(processing=log_and_continue)), "batch", "1 day"),
        (TaskOptions(commit="record"), "record", "1 day"),
        (TaskOptions(max_ahead=0), "batch", 0),
    ],
    ids=["nothing", "handlers", "commit", "max_ahead"],
)
def test_what_is_not_said_is_as_streams_have_it(
    tmp_path: Path, said: TaskOptions | None, commit: str, max_ahead: object
) -> None:
    options = Application(tmp_path, [], options=said)._made().options
    assert (options.commit, options.max_ahead) == (commit, max_ahead)
    assert said is None or options.handlers == said.handlers
