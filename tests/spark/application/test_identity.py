"""An application has one life at a time, wherever it is started from; no Spark here."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.spark.dry import Application, Query, RunningQuery, Start
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import (
    ConfigurationError,
    StateError,
)
from thulawa.spark.micro_batch import checkpoint_lock
from thulawa.spark.micro_batch.manifest import publish_manifest
from thulawa.spark.micro_batch.restore import begin_empty
from thulawa.streams import Materialized, State, StreamsBuilder

HOST = socket.gethostname()


def counting(*, changelog: bool = False) -> Any:
    builder = StreamsBuilder()
    kept: Materialized[str, int] = Materialized(name="counts", changelog=changelog)
    builder.stream("in").group_by_key().count(kept).to_stream().to("out")
    return builder.build()


def application(
    folder: Path, *starts: Start, place: str = "checkpoint", **more: Any
) -> Application:
    options = {"topology": counting(), "checkpoint": str(folder / place)} | more
    return Application(folder, starts, **options)


def run(folder: Path, **options: Any) -> Application:
    started = application(folder, Query(None), **options).start()
    assert started.await_termination("10 s")
    return started


def test_a_start_from_another_folder_is_refused_with_the_place_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    run(tmp_path, place="here")
    elsewhere = application(tmp_path, Query(None), place="there")
    with pytest.raises(StateError) as refused:
        elsewhere.start()
    said = str(refused.value)
    assert f"{tmp_path / 'here'} on {HOST}" in said
    assert "'counts' has no changelog" in said
    assert "thulawa reset" in said
    assert "allow_state_loss=True" in said
    assert len(said.splitlines()) <= 3
    assert not (tmp_path / "there").exists(), "nothing is left of a start that was refused"
    run(tmp_path, place="here")


def test_a_lost_checkpoint_is_begun_again_only_when_that_is_allowed(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    with pytest.raises(StateError, match="holds no checkpoint"):
        application(tmp_path, Query(None)).start()
    run(tmp_path, allow_state_loss=True)
    run(tmp_path)
    with pytest.raises(
        StateError, match=r"not the last one of 'app'.* continued from .*/checkpoint"
    ):
        application(tmp_path, Query(None), place="lost").start()


def test_state_that_is_given_up_goes_on_from_the_committed_offsets(tmp_path: Path) -> None:
    run(tmp_path, place="here")
    with Log(f"file:{tmp_path}/topics") as log:
        log.append({"in": [ProducerRecord(b"k", b"1") for _ in range(9)]})
        with log.consumer("in", group="app") as group:
            group.commit({0: 3})
    for place, offset in (("there", 3), ("elsewhere", 4), ("there", 5)):
        again = run(tmp_path, place=place, allow_state_loss=True)
        assert again._checkpoint.starts() == {"in": {0: offset}}
        again._topics.broker.commit("app", {"in": {0: offset + 1}})
        shutil.rmtree(again._checkpoint.query_path)  # as a start that was cut off leaves it


@pytest.mark.parametrize("written", [[], [6, 7], [7]])
def test_a_program_without_state_goes_on_where_it_was(tmp_path: Path, written: list[int]) -> None:
    query = stateless_life(tmp_path, written)
    again = run(tmp_path, topology=copying(), place="there")
    assert again._checkpoint.starts() == {"in": {0: 3}}
    assert again._checkpoint.query != query


def test_a_program_without_state_is_refused_where_its_last_batch_is_not_known(
    tmp_path: Path,
) -> None:
    stateless_life(tmp_path, [7, 8])
    with pytest.raises(StateError, match="its last batch was written, and its end offsets"):
        application(tmp_path, Query(None), topology=copying(), place="there").start()


def copying() -> Any:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()


def stateless_life(folder: Path, written: list[int]) -> str:
    """Run a program that has committed its offsets after batch 7, and whose tasks have written."""
    first = run(folder, topology=copying(), place="here")
    query = first._checkpoint.query
    assert query is not None
    with Log(f"file:{folder}/topics") as log:
        log.append({"in": [ProducerRecord(b"k", b"1") for _ in range(5)]})
        for task, batch in enumerate(written):
            log.append({}, marker=(query, task), batch=batch)
    first._topics.broker.commit("app", {"in": {0: 3}}, query=query, batch=7)
    return query


def test_committed_offsets_without_a_checkpoint_are_not_begun_again(tmp_path: Path) -> None:
    application(tmp_path)
    with Log(f"file:{tmp_path}/topics") as log, log.consumer("in", group="app") as group:
        group.commit({0: 0})
    with pytest.raises(StateError, match="committed offsets of the group 'app'"):
        application(tmp_path, Query(None)).start()


def test_a_reset_forgets_the_application_wherever_it_is_called(tmp_path: Path) -> None:
    run(tmp_path, place="here")
    with Log(f"file:{tmp_path}/topics") as log, log.consumer("in", group="app") as group:
        group.commit({0: 0})
    application(tmp_path, place="there").reset()
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "there").exists()
    run(tmp_path, place="there")


def test_an_application_runs_once_in_a_process(tmp_path: Path) -> None:
    running = application(tmp_path, RunningQuery()).start()
    for place in ("checkpoint", "other"):
        second = application(tmp_path, RunningQuery(), place=place)
        with pytest.raises(ConfigurationError, match=r"'app' at .* runs in this process already"):
            second.start()
        assert second.state is State.ERROR
    with pytest.raises(ConfigurationError, match="runs in this process already"):
        application(tmp_path).reset()
    assert running.stop("10 s")
    run(tmp_path)


@pytest.mark.parametrize("grown", [False, True], ids=["as it was", "grown"])
def test_changelogs_are_read_by_the_tasks_that_wrote_them(tmp_path: Path, *, grown: bool) -> None:
    builder = StreamsBuilder()
    kept: Materialized[str, int] = Materialized(name="counts", changelog=True)
    builder.stream("in").group_by(lambda key, value: value).count(kept).to_stream().to("out")
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("in", partitions=2)
    first_life(tmp_path, builder.build())
    if grown:
        resize(tmp_path, 3)
    shutil.rmtree(tmp_path / "checkpoint")
    again = application(tmp_path, topology=builder.build())._prepare_program()
    assert [len(part.tasks) for part in again.plan.parts.values() if part.group.stores] == [2]
    assert len(again.slots) == 2


def first_life(folder: Path, topology: Any) -> None:
    """Do what a start does with Spark, up to the first batch."""
    first = application(folder, topology=topology)
    first._program = first._prepare_program()
    if first._checkpoint.query is None:
        begin_empty(first._program, first._topics, first._checkpoint)
    publish_manifest(first._topics, first._program, first._checkpoint, str(first._checkpoint.query))


@pytest.mark.parametrize("started", [False, True], ids=["at once", "after another start"])
@pytest.mark.parametrize("allowed", [False, True], ids=["", "allow_state_loss"])
def test_a_topic_that_was_created_again_is_refused_without_the_checkpoint_too(
    tmp_path: Path, *, started: bool, allowed: bool
) -> None:
    counted = counting(changelog=True)
    first_life(tmp_path, counted)
    with Log(f"file:{tmp_path}/topics") as log:
        log.delete_topic("in")
        log.create_topic("in")
    if started:  # from the checkpoint: its source refuses the topic after this
        first_life(tmp_path, counted)
    shutil.rmtree(tmp_path / "checkpoint")
    again = application(tmp_path, topology=counted, allow_state_loss=allowed)
    with pytest.raises(StateError, match=r"(?s)'in' was deleted and created again.*thulawa reset"):
        again._prepare_program()
    again.reset()
    first_life(tmp_path, counted)


def test_a_topic_that_left_the_program_may_be_created_again(tmp_path: Path) -> None:
    first_life(tmp_path, counting(changelog=True))
    builder = StreamsBuilder()
    kept: Materialized[str, int] = Materialized(name="counts", changelog=True)
    builder.stream("other").group_by_key().count(kept).to_stream().to("out")
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("other")
        log.delete_topic("in")
        log.create_topic("in")
    shutil.rmtree(tmp_path / "checkpoint")
    application(tmp_path, topology=builder.build(), allow_state_loss=True)._prepare_program()


def test_a_changelog_of_other_tasks_is_not_to_be_deleted(tmp_path: Path) -> None:
    first = application(tmp_path, topology=counting(changelog=True))
    first._prepare_program()
    shutil.rmtree(tmp_path / "checkpoint")
    resize(tmp_path, 3)
    with pytest.raises(StateError, match=r"'app-counts-changelog' was written by 1 tasks.*do not"):
        application(tmp_path, topology=counting(changelog=True))._prepare_program()


def resize(folder: Path, partitions: int) -> None:
    """Add partitions, as Kafka does; the embedded log has no way to."""
    with Log(f"file:{folder}/topics") as log:
        topic, there = log.topic("in").id, len(log.end_offsets("in"))
    (database,) = (folder / "topics").glob("log-*.sqlite")
    added = [(topic, number) for number in range(there, partitions)]
    with closing(sqlite3.connect(database)) as sql, sql:
        sql.executemany("INSERT INTO partitions (topic, number) VALUES (?, ?)", added)


OWNER = """
import sys, time
from pathlib import Path
from tests.spark.dry import RunningQuery
from tests.spark.application.test_identity import application

application(Path(sys.argv[1]), RunningQuery()).start()
print("runs", flush=True)
time.sleep(600)
"""


@contextmanager
def another_process(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_with_the_first_ones_host_and_pid(tmp_path: Path) -> None:
    with another_process(tmp_path) as owner:
        for place in ("checkpoint", "other"):
            with pytest.raises(StateError, match=f"process {owner.pid} on {HOST}"):
                application(tmp_path, Query(None), place=place, allow_state_loss=True).start()
        with pytest.raises(StateError, match=f"process {owner.pid} on {HOST}"):
            application(tmp_path).reset()
        owner.kill()
        owner.wait()
        run(tmp_path)


def on_another_host(folder: Path, beat: int = 0) -> None:
    """Write the lock of a process on a host whose locks are not seen here."""
    owner = {"host": "far", "machine": "m", "pid": 7, "started": "then", "beat": beat}
    (folder / "checkpoint").mkdir(exist_ok=True)
    (folder / "checkpoint" / "owner.lock").write_text(json.dumps(owner))


def test_an_owner_on_another_host_is_known_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "LEASE", 5.0)
    on_another_host(tmp_path)
    beating = threading.Timer(0.5, on_another_host, [tmp_path, 1])
    beating.start()
    with pytest.raises(StateError, match="process 7 on far"):
        application(tmp_path, Query(None)).start()
    beating.join()
    monkeypatch.setattr(checkpoint_lock, "LEASE", 1.0)
    run(tmp_path)


def test_an_owner_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_lock, "_BEAT", 0.05)
    running = application(tmp_path, RunningQuery()).start()
    lock = tmp_path / "checkpoint" / "owner.lock"
    first = json.loads(lock.read_text())
    assert (first["host"], first["pid"]) == (HOST, os.getpid())
    for _ in range(200):
        if json.loads(lock.read_text())["beat"] > first["beat"]:
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("no heartbeat")
    running.stop("10 s")
    assert not lock.exists()
