"""An application that has lost its checkpoint rebuilds its state from its changelogs."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import StateError
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch.restore import Restoring
from thulawa.state.store_changelog import POSITION
from thulawa.streams.operator_options import Materialized
from thulawa.streams.streams_builder import StreamsBuilder
from thulawa.topology.topology import Topology


def address(folder: Path) -> str:
    return f"file:{folder / 'topics'}"


def produce(folder: Path, values: range) -> None:
    with Log(address(folder)) as log:
        log.create_topic("in", partitions=2)
        records = [
            ProducerRecord(b"k%d" % (value % 7), b"%d" % value, timestamp=value) for value in values
        ]
        log.append({"in": records})


def counting(folder: Path, *, changelog: bool = True) -> Topology:
    """Count by remainder, behind a shuffle; the key "1" fails while there is a file for it."""
    trap = folder / "trap"

    def add(key: str, value: int, count: int) -> int:
        if key == "1" and trap.exists():
            raise RuntimeError("the trap is set")
        return count + 1

    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by(lambda key, value: str(value % 3))
    kept: Materialized[str, int] = Materialized(name="counts", changelog=changelog)
    grouped.aggregate(lambda: 0, add, kept).to_stream().to("out")
    return builder.build()


def streams(folder: Path, spark: Any, **options: Any) -> Streams:
    return Streams(
        counting(folder, changelog=options.pop("changelog", True)),
        application_id="app",
        log=address(folder),
        checkpoint=str(folder / "checkpoint"),
        spark=spark,
        **options,
    )


def outputs(folder: Path) -> Counter[tuple[str, int]]:
    with Log(address(folder)) as log:
        return Counter(
            ((record.key or b"").decode(), json.loads(record.value or b""))
            for partition in (0, 1)
            for record in log.read("out", partition, 0)
        )


def model(values: range) -> Counter[tuple[str, int]]:
    seen: Counter[str] = Counter()
    updates: Counter[tuple[str, int]] = Counter()
    for value in values:
        seen[str(value % 3)] += 1
        updates[str(value % 3), seen[str(value % 3)]] += 1
    return updates


@pytest.mark.timeout(900)  # seconds on a machine that is not crowded: six queries are started
def test_a_lost_checkpoint_is_rebuilt_and_every_record_counts_once(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the callbacks of a query that was stopped in one may never answer again
    monkeypatch.setattr(DataStreamWriter, "foreachBatch", None)
    produce(tmp_path, range(60))
    with streams(tmp_path, spark, max_records=40) as application:
        application.process_all_available("9 minutes")
    with Log(address(tmp_path)) as log:
        described = log.describe("app-counts-changelog")
        assert described.compact
        assert len(described.partitions) == 2
        written = [r for p in (0, 1) for r in log.read("app-counts-changelog", p, 0)]
    keys = Counter(record.key for record in written if record.key != POSITION)
    assert all(times <= 2 for times in keys.values()), "one record of a key in a batch"

    # a batch that one task has written and the other has not, and then everything is lost
    (tmp_path / "trap").touch()
    produce(tmp_path, range(60, 90))
    failing = streams(tmp_path, spark)
    with pytest.raises(Exception, match="the trap is set"), failing:
        failing.process_all_available("9 minutes")
    generation = json.loads((tmp_path / "checkpoint/query-0/metadata").read_text())["id"]
    with Log(address(tmp_path)) as log:
        batches = [log.last_batch((generation, task)) for task in (0, 1)]
    assert batches[0] != batches[1]
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "trap").unlink()

    told: list[Restoring] = []
    restoring = streams(tmp_path, spark)
    restoring.on_restoring = told.append
    found = restoring.restore()
    assert sum(store.entries for store in found) == 3
    assert told[-1].records > 0
    produce(tmp_path, range(90, 99))
    with streams(tmp_path, spark) as application:
        application.process_all_available("9 minutes")
        assert dict(application.store("counts").all()) == {"0": 33, "1": 33, "2": 33}
    assert outputs(tmp_path) == model(range(99))

    # and again, now at its start
    shutil.rmtree(tmp_path / "checkpoint")
    produce(tmp_path, range(99, 102))
    with streams(tmp_path, spark) as application:
        application.process_all_available("9 minutes")
    assert outputs(tmp_path) == model(range(102))


def test_a_changelog_that_is_gone_is_not_taken_for_an_empty_store(tmp_path: Path) -> None:
    produce(tmp_path, range(3))
    with Log(address(tmp_path)) as log:  # as an earlier life left it, but for the changelog
        log.create_topic("app-offsets", partitions=2, compact=True)
        life = json.dumps({"query": "before", "batch": -1, "done": [], "stamps": []}).encode()
        log.append({"app-offsets": [ProducerRecord(b"generation", life, partition=0)]})
    for _ in range(2):
        with pytest.raises(StateError, match="app-counts-changelog"):
            streams(tmp_path, None).restore()
    with Log(address(tmp_path)) as log:
        assert "app-counts-changelog" not in log.topics()


@pytest.mark.timeout(900)
def test_records_that_wait_when_the_checkpoint_is_lost_are_not_lost_with_it(
    tmp_path: Path, spark: Any
) -> None:
    with Log(address(tmp_path)) as log:
        for topic in ("users", "clicks"):
            log.create_topic(topic, partitions=2)
        users = [ProducerRecord(b"u%d" % n, b'"name"', (), 1_000 + n) for n in range(300)]
        clicks = [ProducerRecord(b"u%d" % n, b"%d" % n, (), 5_000 + n) for n in range(300)]
        log.append({"users": users, "clicks": clicks})
    builder = StreamsBuilder()
    table = builder.table("users", materialized=Materialized(name="users", changelog=True))
    builder.stream("clicks").join(table, lambda click, user: click).to("out")

    def started(most: int | None) -> Streams:
        return Streams(
            builder.build(), application_id="app", log=address(tmp_path), spark=spark,
            checkpoint=str(tmp_path / "checkpoint"), max_records=most,
        )  # fmt: skip

    with started(100) as application:
        application.process_batches(2, "5 minutes")
    with Log(address(tmp_path)) as log:
        assert sum(log.end_offsets("out").values()) == 0, "all clicks that were read wait"
    shutil.rmtree(tmp_path / "checkpoint")
    with started(None) as application:
        application.process_all_available("5 minutes")
    with Log(address(tmp_path)) as log:
        found = [record.value for p in (0, 1) for record in log.read("out", p, 0)]
    assert Counter(found) == Counter(b"%d" % n for n in range(300))
