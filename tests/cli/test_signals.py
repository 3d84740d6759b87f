"""``thulawa run`` stops at a signal: after the current batch, or at once at the second."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.cli.commands import app
from thulawa.spark.application import Streams
from thulawa.streams import State, StreamsBuilder


class Pretended(Streams):
    """An application whose batches take as long as the test says."""

    signals: tuple[int, ...] = ()
    batch_looks = 0
    while_starting = False

    def start(self) -> Any:
        if self.while_starting:
            os.kill(os.getpid(), self.signals[0])
        self._machine.go(State.REBALANCING)
        self._machine.go(State.RUNNING)
        return self

    def await_termination(self, timeout: Any = None) -> bool:
        if not self._ended.is_set() and self.signals:
            os.kill(os.getpid(), self.signals[0])
        return self._ended.wait(0.01)

    def drain(self, timeout: Any) -> bool:
        for number in self.signals[1:]:
            os.kill(os.getpid(), number)
        self.batch_looks -= 1
        return self.batch_looks < 0

    def stop(self, timeout: Any = None) -> bool:
        self._ended.set()
        return True


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pretended]:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    made = Pretended(builder.build(), application_id="app", log=f"file:{tmp_path}/topics")
    monkeypatch.setattr("thulawa.cli.programs.load", lambda target: made)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield made
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def run(*options: str) -> Any:
    return CliRunner().invoke(app, ["run", "app:streams", *options])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_waits_for_the_batch_and_ends_with_zero(
    streams: Pretended, number: int
) -> None:
    streams.signals, streams.batch_looks = (number,), 3
    result = run()
    assert (result.exit_code, streams.batch_looks) == (0, -1)


def test_a_second_signal_ends_it_at_once_with_the_shells_code(streams: Pretended) -> None:
    streams.signals, streams.batch_looks = (signal.SIGTERM, signal.SIGTERM), 1_000
    result = run()
    assert result.exit_code == 143
    assert "runs again at the next start" in result.stderr


def test_a_batch_that_takes_too_long_is_said_to_run_again(streams: Pretended) -> None:
    streams.signals, streams.batch_looks = (signal.SIGTERM,), 1_000_000
    result = run("--stop-timeout", "50 ms")
    assert result.exit_code == 0
    assert "did not commit within 0.05 s" in result.stderr


def test_a_signal_while_it_starts_interrupts_it(streams: Pretended) -> None:
    streams.signals, streams.while_starting = (signal.SIGTERM,), True
    assert run().exit_code == 130


def test_a_real_run_ends_between_batches(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        """
import time
from thulawa import Streams, StreamsBuilder

builder = StreamsBuilder()
slow = builder.stream("in").map_values(lambda value: time.sleep(0.02) or value)
slow.group_by_key().count().to_stream().to("out")
streams = Streams(builder.build(), application_id="app", log="file:./topics", max_records=50)
"""
    )
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("in")
        log.append({"in": [ProducerRecord(b"k", b"1") for _ in range(20_000)]})
        program = [sys.executable, "-c", "from thulawa.cli import main; main()"]
        process = subprocess.Popen(
            [*program, "run", "app:streams"], cwd=tmp_path, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 100
        while "out" not in log.topics() or not sum(log.end_offsets("out").values()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        written = sum(log.end_offsets("out").values())
    query = tmp_path / "topics" / "checkpoints" / "app"
    (offsets,) = query.rglob("offsets")
    begun = {name.name for name in offsets.iterdir() if name.name.isdigit()}
    committed = {name.name for name in (offsets.parent / "commits").iterdir()}
    assert begun <= committed
    assert 0 < written < 20_000
