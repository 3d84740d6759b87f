"""Resources that workers opened are closed, whatever ends the worker."""

import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

CELL = """
import sys
import time
from contextlib import asynccontextmanager

import thulawa

folder, end = sys.argv[1:]
spark = thulawa.session(
    master="local[2]",
    settings={"spark.ui.enabled": "false", "spark.log.level": "OFF"},
)


def note(word):
    with open(f"{folder}/notes", "a") as file:
        file.write(word + "\\n")


@asynccontextmanager
async def client():
    note("opened")
    try:
        yield "client"
    finally:
        note("closed")


async def ask(row, client):
    if end == "a failing task":
        raise ValueError("no")
    return client


def cell():
    rows = spark.range(0, 8, 1, 2)
    ask_all = thulawa.map_by_key(
        ask, key="id", returns="answer string", order="none", resource=client
    )
    assert rows.transform(ask_all).count() == 8


if end == "a failing task":
    try:
        cell()
    except Exception:
        note("failed")
    time.sleep(600)  # the session stays
for _ in range(15):
    cell()
if end == "spark.stop()":
    spark.stop()
    time.sleep(600)  # the driver stays
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", ["spark.stop()", "the end of the driver", "a failing task"])
def test_whatever_was_opened_is_closed_after(end: str, tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(dedent(CELL))
    notes = tmp_path / "notes"
    driver = subprocess.Popen([sys.executable, tmp_path / "cell.py", tmp_path, end], cwd=tmp_path)
    try:
        give_up = time.monotonic() + 240
        while True:
            words = notes.read_text().split() if notes.exists() else []
            opened, closed = words.count("opened"), words.count("closed")
            done = "failed" in words if end == "a failing task" else opened >= 15
            if done and opened == closed:
                break
            assert time.monotonic() < give_up, (opened, closed)
            time.sleep(0.2)
        # a moment later nothing more was opened, so this was the end of it
        time.sleep(2)
        assert notes.read_text().split() == words
    finally:
        driver.kill()
        driver.wait()
