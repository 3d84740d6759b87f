"""Local state of continuous execution: what a restart reuses, and what it does not believe."""

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.continuous.test_host import Application, until
from thulawa.errors import StateError
from thulawa.runtime.handlers import Handlers, log_and_continue
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.continuous.continuous_program import TaskId
from thulawa.spark.continuous.local_state import TaskFolder, remove_unowned, state_folder
from thulawa.state.rocksdb import LocalDatabase
from thulawa.streams import Materialized, StreamsBuilder


def count(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count(Materialized(name="counts")).to_stream().to("out")


@pytest.fixture
def app(tmp_path: Path) -> Application:
    return Application(tmp_path, count, partitions=3)


def send(app: Application, records: int = 300, keys: int = 20) -> None:
    app.send(*((f"k{number % keys}", number) for number in range(records)))


def counted(app: Application, records: int) -> None:
    """Wait for so many results and check that each key was counted without a gap."""
    until(lambda: len(app.out()) >= records)
    seen: Counter[str] = Counter()
    for key, value in app.out():
        seen[key] += 1
        assert value == seen[key]
    assert seen.total() == records


def restarted(app: Application, records: int) -> int:
    """Run the application over 300 more records; return how many records it has restored."""
    (running,) = app.start()
    send(app)
    counted(app, records)
    running.stop()
    return running.host.status.restored


def databases(app: Application) -> Iterator[Path]:
    return state_folder(app.program).glob("*/db")


def test_a_restart_reads_only_what_was_committed_since_the_last_write(app: Application) -> None:
    send(app, 2_000, 2_000)
    assert restarted(app, 2_300) == 0
    assert restarted(app, 2_600) <= 2_020
    assert restarted(app, 2_900) <= 20  # the last commit may be read once more
    assert len(list(databases(app))) == 3


def test_a_crash_is_healed_from_the_changelogs(app: Application) -> None:
    send(app)
    restarted(app, 600)
    (running,) = app.start()
    send(app)
    counted(app, 900)
    running.crash()
    assert restarted(app, 1_200) > 0


def test_a_start_on_another_machine_restores_everything_and_tells_its_progress(
    app: Application, tmp_path: Path
) -> None:
    send(app)
    restarted(app, 600)
    (running,) = app.start(replace(app.program, state_dir=f"{tmp_path}/elsewhere"))
    send(app)
    counted(app, 900)
    running.stop()
    assert running.host.status.restored == 20
    progress = running.host.status.restoring
    assert set(progress) == {f"0_{partition}/counts" for partition in range(3)}
    assert all(0 < done == total for done, total in progress.values())


@pytest.mark.parametrize("file", ["CURRENT", "MANIFEST-*", "*.sst", "*.log"])
def test_a_damaged_copy_never_gives_wrong_results(
    app: Application, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(app)
    restarted(app, 600)
    restarted(app, 900)
    for database in databases(app):
        for path in database.glob(file):
            data = bytearray(path.read_bytes())
            data[len(data) // 2 :] = os.urandom(len(data) - len(data) // 2)
            path.write_bytes(data)
    restarted(app, 1_200)
    if file == "CURRENT":
        assert "is discarded and restored from its changelogs" in caplog.text


def test_a_copy_of_another_application_is_not_used(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    send(app)
    restarted(app, 600)
    base = state_folder(app.program)
    other = replace(app.program, application_id="other")
    shutil.copytree(base, state_folder(other))
    with caplog.at_level(logging.WARNING):
        (running,) = app.start(other)
        until(lambda: len(app.out()) >= 1_200)
        running.stop()
    assert "it is of another application" in caplog.text
    assert max(value for _, value in app.out()) == 30  # counted anew from the input


def test_an_old_copy_with_missing_changes_is_not_used(
    app: Application, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send(app)
    restarted(app, 600)
    kept = state_folder(app.program)
    shutil.copytree(kept, f"{kept}-old")
    restarted(app, 900)
    shutil.rmtree(kept)
    shutil.move(f"{kept}-old", kept)
    now = time.time
    monkeypatch.setattr("thulawa.spark.continuous.local_state.time.time", lambda: now() + 50_000)
    assert restarted(app, 1_200) >= 20
    assert "deletions may be missing" in caplog.text


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    first = TaskFolder(tmp_path, TaskId(0, 1))
    second = TaskFolder(tmp_path, TaskId(0, 1))
    assert first.path != second.path
    first.close()
    third = TaskFolder(tmp_path, TaskId(0, 1))
    assert third.path == first.path
    second.close()
    third.close()


def test_folders_that_nobody_owns_are_removed_after_some_time(tmp_path: Path) -> None:
    owned = TaskFolder(tmp_path, TaskId(0, 0))
    free = TaskFolder(tmp_path, TaskId(0, 1))
    free.close()
    assert remove_unowned(tmp_path) == []
    assert remove_unowned(tmp_path, older_than=-1) == [free.path]
    assert owned.path.exists()
    owned.close()


def test_more_entries_than_memory_are_counted_right_with_a_bounded_cache(tmp_path: Path) -> None:
    app = Application(tmp_path, count, partitions=2, state_memory=400_000)
    (running,) = app.start()
    for _ in range(3):
        app.send(*((f"k{number}", 1) for number in range(4_000)))
    counted(app, 12_000)
    host = running.host
    held = sum(entries.held * entries.entry_bytes for entries in host._state._entries())
    running.stop()
    assert held < 4_000 * 200  # of all entries
    assert held < 2 * 400_000


def test_an_error_of_the_disk_is_not_skipped_by_a_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = Handlers(processing=log_and_continue)
    app = Application(
        tmp_path, count, state_memory=1_000, task_options=TaskOptions(handlers=handlers)
    )
    send(app, 50, 10)
    (running,) = app.start()
    counted(app, 50)
    running.stop()

    def fails(self: LocalDatabase, *_: Any) -> Any:
        raise self._failed("read", OSError("Input/output error"))

    with monkeypatch.context() as patched:
        patched.setattr(LocalDatabase, "get_many", fails)
        patched.setattr(LocalDatabase, "get", fails)
        (running,) = app.start()
        send(app, 50, 10)
        assert running.ended()
    assert isinstance(running.error, StateError)
    (running,) = app.start()
    counted(app, 100)
    running.stop()
