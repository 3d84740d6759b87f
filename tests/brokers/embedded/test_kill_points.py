"""Killed at any point, the log is as before or as after, and doing it again ends well."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers.embedded.helpers import database, numbered, values
from tests.brokers.embedded.killing import OPERATIONS
from thulawa.brokers.embedded import Log

ROOT = Path(__file__).parents[3]
POINTS = 1000 if os.environ.get("THULAWA_LONG") else 25


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_is_killed_leaves_nothing_half_done(
    operation: str, tmp_path: Path
) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.brokers.embedded.killing",
            operation,
            str(tmp_path),
            str(POINTS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= POINTS * 0.75


def test_a_commit_that_was_cut_off_while_being_written_did_not_happen(
    log: Log, tmp_path: Path
) -> None:
    for topic in ("a", "b"):
        log.create_topic(topic)
    log.append({"a": numbered([1]), "b": numbered([1])}, marker=("w", 0), batch=1)
    wal = database(log).with_name(database(log).name + "-wal")
    before = wal.stat().st_size
    log.append({"a": numbered(range(2, 300)), "b": numbered([2])}, marker=("w", 0), batch=2)
    after = wal.stat().st_size
    assert after > before
    for length in [*range(before, after, max(1, (after - before) // 40)), after - 1, after]:
        place = tmp_path / f"cut-{length}"
        shutil.copytree(database(log).parent, place, ignore=shutil.ignore_patterns("*-shm"))
        os.truncate(place / wal.name, length)
        with Log(f"file:{place}") as cut:
            state = (len(values(cut, "a")), len(values(cut, "b")), cut.last_batch(("w", 0)))
        assert state == ((299, 2, 2) if length == after else (1, 1, 1))
