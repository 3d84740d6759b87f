"""Applications by name: begun, described, checked and reset from the command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from thulawa.brokers.embedded import Log
from thulawa.cli.commands import app
from thulawa.cli.programs import load
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    assert thulawa("init").exit_code == 0
    return tmp_path


def thulawa(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_new_project_passes_its_own_test(project: Path) -> None:
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert thulawa("init").exit_code == 2


@pytest.mark.parametrize(
    ("output", "start"),
    [("text", "Topologies:"), ("mermaid", "flowchart"), ("dot", "digraph"), ("json", "{")],
)
def test_a_program_is_described(project: Path, output: str, start: str) -> None:
    for target in ("app:topology", "app:streams", "app:builder"):
        result = thulawa("describe", target, "--format", output)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(start)


def test_a_program_is_checked_against_its_topics(project: Path) -> None:
    result = thulawa("validate", "app:streams")
    assert result.exit_code == 2
    assert "'visits' does not exist" in result.output
    with Log("file:./topics") as log:
        log.create_topic("visits", partitions=3)
    result = thulawa("validate", "app:streams")
    assert "in stage 1, in 3 task(s)" in result.stdout
    assert "per-visitor" in result.stdout
    assert thulawa("validate", "app:topology").exit_code == 0


def test_a_program_is_checked_against_its_checkpoint(project: Path) -> None:
    with Log("file:./topics") as log:
        log.create_topic("visits", partitions=3)
    result = thulawa("validate", "app:streams")
    assert "checkpoint: none at " in result.stdout
    streams = load("app:streams")
    checkpoint = Checkpoint(str(streams.checkpoint))
    checkpoint.accept(Program("visits", "", streams.planned()), allow_state_loss=False)
    result = thulawa("validate", "app:streams")
    assert result.exit_code == 0, result.output
    assert f"checkpoint: {checkpoint.root}, all state is kept" in result.stdout
    Path("app.py").write_text(Path("app.py").read_text().replace("per-visitor", "renamed"))
    del sys.modules["app"]
    result = thulawa("validate", "app:streams")
    assert result.exit_code == 1
    assert "state would be lost: the store 'per-visitor' is in the checkpoint" in result.stderr


def checkpoint_of(project: Path, application: str) -> Path:
    """Leave a checkpoint where the program has its own."""
    checkpoint = project / "topics" / "checkpoints" / "visits"
    checkpoint.mkdir(parents=True)
    written = {"format": 1, "application_id": application}
    (checkpoint / "application.json").write_text(json.dumps(written))
    return checkpoint


def folder_of_files(project: Path) -> Path:
    folder = project / "topics" / "checkpoints" / "visits"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("precious")
    return folder


def plain_file(project: Path) -> Path:
    file = project / "topics" / "checkpoints" / "visits"
    file.parent.mkdir()
    file.write_text("precious")
    return file


@pytest.mark.parametrize(
    "there",
    [lambda project: checkpoint_of(project, "another"), folder_of_files, plain_file],
    ids=["another's checkpoint", "a folder", "a file"],
)
@pytest.mark.parametrize("execute", [(), ("--execute",)], ids=["told", "done"])
def test_reset_removes_nothing_where_the_checkpoint_is_not_the_application_s(
    project: Path, there: Callable[[Path], Path], execute: tuple[str, ...]
) -> None:
    text = Path("app.py").read_text()
    kept = 'Materialized(name="per-visitor", changelog=True)'
    Path("app.py").write_text(text.replace('Materialized.as_("per-visitor")', kept))
    with Log("file:./topics") as log:
        log.create_topic("visits-per-visitor-changelog", compact=True)
        path = there(project)
        result = thulawa("reset", "app:streams", *execute)
        assert result.exit_code == 1, result.output
        assert f"{path} is not" in result.output
        assert path.exists()
        assert log.topics() == ["visits-per-visitor-changelog"]


def test_reset_says_what_it_would_do_and_does_it_when_told(project: Path) -> None:
    checkpoint = checkpoint_of(project, "visits")
    assert "would remove the checkpoint" in thulawa("reset", "app:streams").stdout
    assert checkpoint.exists()
    assert "removed the checkpoint" in thulawa("reset", "app:streams", "--execute").stdout
    assert not checkpoint.exists()


@pytest.mark.parametrize("target", ["app", "nowhere:x", "app:nothing", "app:Materialized"])
def test_what_is_no_program_is_refused(project: Path, target: str) -> None:
    assert thulawa("describe", target).exit_code == 2


_FAILED_QUERY = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An \
exception was thrown from the Python worker: ValueError: JSONDecodeError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 3622, in main
    process()
thulawa.errors.SerializationError: SOURCE: a bytes cannot be read as JSON; choose
another serde
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Logical Plan:
WriteToMicroBatchDataSource thulawa-kafka
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_FAILED_QUERY, "thulawa.errors.SerializationError: SOURCE: a bytes cannot be"),
        ("the network is down", "RuntimeError: the network is down\n"),
    ],
    ids=["an error of a worker", "another"],
)
def test_a_run_that_fails_ends_with_what_ended_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    (project / "failing.py").write_text(f"""
import thulawa
from app import topology

class Failing(thulawa.Streams):
    def start(self):
        return self
    def await_termination(self, timeout=None):
        raise RuntimeError({text!r})

streams = Failing(topology, application_id="failing", log="file:./topics")
""")
    result = thulawa("run", "failing:streams")
    assert result.exit_code == 1
    assert result.stderr.startswith(said)
    assert len(result.stderr.splitlines()) <= 2


def test_validate_lists_the_topics_of_dead_letters(project: Path) -> None:
    Path("app.py").write_text(
        Path("app.py")
        .read_text()
        .replace(
            'log="file:./topics")',
            """log="file:./topics", options=TaskOptions(
    handlers=Handlers(processing=DeadLetterQueue("visits-dead"))))""",
        )
        .replace(
            "from thulawa import",
            """from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa import""",
        )
    )
    with Log("file:./topics") as log:
        log.create_topic("visits")
    result = thulawa("validate", "app:streams")
    assert result.exit_code == 0, result.output
    assert "dead letters: visits-dead" in result.output


@pytest.mark.parametrize("option", ["--application-id", "--log", "--checkpoint"])
def test_options_that_a_program_has_said_already_are_refused(project: Path, option: str) -> None:
    result = thulawa("reset", "app:streams", option, "file:./other")
    assert result.exit_code == 2
    assert f"leave {option} out" in result.output


def test_a_program_without_changelogs_cannot_be_restored(project: Path) -> None:
    with Log("file:./topics") as log:
        log.create_topic("visits")
    result = thulawa("restore", "app:streams")
    assert result.exit_code == 2
    assert "has no changelogs" in result.output


def test_a_reset_forgets_changelogs_too(project: Path) -> None:
    text = Path("app.py").read_text()
    kept = 'Materialized(name="per-visitor", changelog=True)'
    Path("app.py").write_text(text.replace('Materialized.as_("per-visitor")', kept))
    own = {"visits-per-visitor-changelog", "visits-offsets"}
    with Log("file:./topics") as log:
        for topic in ("visits", *own):
            log.create_topic(topic, compact=topic in own)
        result = thulawa("reset", "app:streams", "--execute")
        assert result.exit_code == 0, result.output
        assert log.topics() == ["visits"]
