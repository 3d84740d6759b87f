"""A task that is added later has its global tables whole: their topics are read anew."""

import json
from pathlib import Path
from typing import Any

import pytest

from thulawa.dsl import StreamsBuilder, Topology
from thulawa.log import Log, ProducerRecord
from thulawa.runtime.planning import plan
from thulawa.spark.streams.logs import Topics, topics_at
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.records import Checkpoint
from thulawa.spark.streams.tables import fill_new_copies


def joining(*streams: str, extra: str = "") -> Topology:
    builder = StreamsBuilder()
    names = builder.global_table("names")
    for stream in streams:
        joined = builder.stream(stream).join(names, lambda key, value: key, lambda v, n: [v, n])
        joined.to(f"{stream}-out")
    if extra:
        builder.stream(extra).to("copied")
    return builder.build()


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    address = f"file:{tmp_path / 'topics'}"
    with Log(address) as log:
        for name in ("names", "a", "b"):
            log.create_topic(name)
        log.append({"names": [ProducerRecord(b"k", b'"n"')] * 9})
    return topics_at(address)


class Application:
    """What `Streams` does with its checkpoint, and Spark in it."""

    def __init__(self, folder: Path, topics: Topics) -> None:
        self.checkpoint = Checkpoint(str(folder / "checkpoint"))
        self.topics = topics

    def start(self, topology: Topology, **counts: int) -> Any:
        """Give the offsets that the next batch begins at."""
        assigned = self.checkpoint.assignment()
        made = plan(topology, counts, assigned=assigned)
        admitted = self.checkpoint.admit("app", made, allow_state_loss=False)
        program = Program("app", "app/1", made, prefixes=admitted.prefixes)
        fill_new_copies(program, self.topics, self.checkpoint)
        return self.checkpoint.committed_offsets()

    def commit(self, number: int, **ends: int) -> None:
        """Write what Spark does of a batch."""
        folder = Path(self.checkpoint.query_path)
        lines = ["v1", "{}", json.dumps({topic: {"0": end} for topic, end in ends.items()})]
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / str(number)).write_text("\n".join(lines), encoding="utf-8")


def test_a_table_is_read_anew_where_a_task_is_new_and_only_then(
    tmp_path: Path, topics: Topics
) -> None:
    application = Application(tmp_path, topics)
    assert application.start(joining("a"), a=1) == {}
    application.commit(0, names=9, a=5)
    assert application.start(joining("a"), a=1) == {"names": {0: 9}, "a": {0: 5}}
    assert application.start(joining("a"), a=2) == {"names": {0: 0}, "a": {0: 5}}
    application.commit(1, names=9, a=5)
    assert application.start(joining("a"), a=2) == {"names": {0: 9}, "a": {0: 5}}


def test_a_table_is_read_anew_for_a_second_reader(tmp_path: Path, topics: Topics) -> None:
    application = Application(tmp_path, topics)
    application.start(joining("a"), a=1)
    application.commit(0, names=9, a=5)
    assert application.start(joining("a", "b"), a=1, b=1)["names"] == {0: 0}


def test_one_that_was_away_for_a_while_counts_as_new(tmp_path: Path, topics: Topics) -> None:
    application = Application(tmp_path, topics)
    application.start(joining("a", "b"), a=1, b=1)
    application.commit(0, names=9, a=5, b=5)
    assert application.start(joining("a", extra="b"), a=1, b=1)["names"] == {0: 9}
    application.commit(1, names=9, a=5, b=5)
    assert application.start(joining("a", "b"), a=1, b=1)["names"] == {0: 0}


def test_a_start_that_is_cut_off_is_made_good_by_the_next(tmp_path: Path, topics: Topics) -> None:
    application = Application(tmp_path, topics)
    application.start(joining("a"), a=1)
    application.commit(0, names=9, a=5)
    application.start(joining("a"), a=2)  # no batch follows
    assert application.start(joining("a"), a=2)["names"] == {0: 0}
