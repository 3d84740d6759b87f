"""On a cluster, state is written where driver and executors see one folder, or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from thulawa import Streams, StreamsBuilder, session
from thulawa.embedded import Log
from thulawa.streams import Materialized
from thulawa.brokers.embedded import ProducerRecord

topics, *checkpoints = sys.argv[1:]
with Log(topics) as log:
    log.create_topic("in", partitions=2)
    log.append({"in": [ProducerRecord(b"k%d" % (n % 5), b"1") for n in range(20)]})
builder = StreamsBuilder()
builder.stream("in").group_by_key().count(Materialized.as_("counts"))
spark = session("shared", master="local-cluster[2,1,1024]", settings={"spark.log.level": "ERROR"})
for number, checkpoint in enumerate(checkpoints):
    streams = Streams(
        builder.build(),
        application_id=f"app-{number}",
        log=topics,
        checkpoint=checkpoint,
        spark=spark,
    )
    try:
        with streams:
            streams.process_all_available("3 minutes")
            print(json.dumps(dict(streams.store("counts").all())))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def run(folder: Path, *checkpoints: str) -> list[object]:
    """Run an application for each checkpoint on one cluster; return what each printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"file:{folder / 'topics'}", *checkpoints],
        cwd=folder,
        env=os.environ | {"SPARK_WORKER_DIR": str(folder / "work")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(checkpoints) :]]


@pytest.mark.timeout(600)  # a cluster has to start
def test_a_folder_that_executors_see_otherwise_is_refused(tmp_path: Path) -> None:
    # a path that is another folder for each process: that of its own working directory
    shared = tmp_path / "checkpoint"
    refused, counted = run(tmp_path, "/proc/self/cwd/unshared", str(shared))
    assert isinstance(refused, str)
    assert refused.startswith("ConfigurationError: the checkpoint /proc/self/cwd/unshared is not")
    assert "does not see what the driver writes there" in refused
    assert "mounted on all hosts" in refused
    assert counted == {f"k{n}": 4 for n in range(5)}
    assert not list(shared.glob("probe-*"))
