"""Drivers that are killed, on a real broker and real Spark: nothing lost, doubled or reordered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.helpers import CLEAN, fill, judge, read
from thulawa.kafka.connection import Connection
from thulawa.kafka.maven import connector_jars
from thulawa.kafka.topics import Topics, TopicSpec

PROGRAM = Path(__file__).with_name("killed_driver.py")
ROOT = Path(__file__).parents[2]


def drive(connection: Connection, name: str, checkpoint: Path, point: str) -> int:
    program = [sys.executable, str(PROGRAM), connection.bootstrap, name, str(checkpoint), point]
    log = checkpoint.parent / f"{point.replace(' ', '-')}.log"
    with log.open("wb") as said:
        return subprocess.run(
            program, cwd=ROOT, env=dict(os.environ), stdout=said, stderr=said, check=False,
            timeout=100,
        ).returncode  # fmt: skip


@pytest.mark.timeout(240)
def test_a_driver_killed_mid_batch_and_after_kafka_s_commit_leaves_each_record_once(
    connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic, TopicSpec(partitions=2))
    fill(connection, f"{name}-in", range(250))
    checkpoint = tmp_path / "cp"
    connector_jars()

    assert drive(connection, name, checkpoint, "mid batch") < 0
    assert drive(connection, name, checkpoint, "after commit") < 0
    assert not list(checkpoint.glob("commits/0"))
    assert drive(connection, name, checkpoint, "never") == 0
    assert judge(read(connection, f"{name}-out"), range(250)) == CLEAN
