"""A worker that Spark ends closes its resources; Spark's part is played without Spark."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import os
import signal
import sys
from contextlib import asynccontextmanager

import pyarrow as pa

from thulawa.engine import Options
from thulawa.spark.map_by_key import worker
from thulawa.spark.map_by_key.operator import Operator
from thulawa.spark.map_by_key.operator_states import close_resources_at_exit


@asynccontextmanager
async def client():
    print("opened", flush=True)
    try:
        yield "client"
    finally:
        print("closed", flush=True)


def ask(row, client):
    return client


one = Operator(
    name="ask", function=ask, flat=False, keys=("n",), keep=(), options=Options(),
    returns=pa.schema([("answer", pa.string())]), resource=client,
)
close_resources_at_exit()  # as in a task of Spark
for _ in range(2):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Spark resets it before each task
    assert len(list(worker.process(one, iter([pa.RecordBatch.from_pylist([{"n": 1}])])))) == 1
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if os.fork() == 0:
    os._exit(0)  # a process that the function has forked closes nothing
os.wait()
print("waiting", flush=True)
sys.stdin.read()  # Spark closes the socket
os._exit(0)
"""


@pytest.mark.parametrize("end", ["the socket is closed", "SIGHUP", "both"])
def test_a_worker_that_ends_closes_what_it_opened_once(end: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    worker = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        said = [worker.stdout.readline().strip() for _ in range(2)]
        assert said == ["opened", "waiting"]
        if end != "SIGHUP":
            worker.stdin.close()
        if end != "the socket is closed":
            os.kill(worker.pid, signal.SIGHUP)
        assert worker.stdout.read().split() == ["closed"]
        assert worker.wait(30) in (0, 1)
    finally:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
