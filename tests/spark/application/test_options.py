"""What is not said about tasks is as `Streams` has it; no Spark here."""

from pathlib import Path

import pytest

from tests.spark.dry import Application
from thulawa.errors import ConfigurationError
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.streams import StreamsBuilder


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
    options = Application(tmp_path, [], options=said)._prepare_program().options
    assert (options.commit, options.max_ahead) == (commit, max_ahead)
    assert said is None or options.handlers == said.handlers


def test_the_checkpoint_lies_in_the_folder_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the program runs: one that looks elsewhere would write everything again."""
    found = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        topology = Application(tmp_path / place, []).topology
        streams = Streams(topology, application_id="app", log="file:../topics")
        found.append(streams._checkpoint.root.resolve())
    assert found == [tmp_path / "topics/checkpoints/app"] * 2


def test_a_builder_is_no_topology() -> None:
    with pytest.raises(ConfigurationError, match=r"builder\.build\(\) gives one"):
        Streams(StreamsBuilder(), application_id="app", log="file:topics")  # type: ignore[arg-type]
