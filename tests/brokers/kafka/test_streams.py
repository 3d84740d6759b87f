"""A topology on Spark with its topics in Kafka: exactly once, also without its checkpoint."""

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers.conftest import PASSWORDS
from tests.brokers.kafka.helpers import CLEAN, counting, fill, judge, read
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import committed_offsets, lag
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.port import LARGEST_RECORD
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import (
    ConfigurationError,
    StateError,
)
from thulawa.runtime.batch_size import AdaptiveBatchSize
from thulawa.runtime.handlers import DeadLetterQueue, Handlers
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch import runner as running
from thulawa.streams import Grouped, Materialized, StreamsBuilder


@pytest.mark.timeout(900)  # seconds on a machine that is not crowded
def test_counts_go_on_after_a_restart_and_without_the_checkpoint_and_leave_once(
    spark: SparkSession, broker: DevBroker, connection: Connection, topics: Topics, name: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    secured = broker.secured("ann", PASSWORDS["ann"])

    def process(numbers: range, log: str | Connection, **options: Any) -> None:
        fill(connection, f"{name}-in", numbers)
        with Streams(
            counting(name), application_id=name, log=log, checkpoint=str(tmp_path / "cp"),
            spark=spark, **options,
        ) as streams:  # fmt: skip
            streams.process_all_available("9 minutes")
            assert streams.store("counts").get("0") == (numbers.stop + 2) // 3

    process(range(60), f"kafka://{connection.bootstrap}", max_records=40)
    process(range(60, 90), secured, max_records=AdaptiveBatchSize(least=1, first=20, most=1_000))
    shutil.rmtree(tmp_path / "cp")
    topics.ensure_partitions(f"{name}-in", 3)  # the changelog was written by two tasks
    process(range(90, 120), secured)
    updates = Counter((m.key(), m.value()) for m in read(connection, f"{name}-out"))
    assert updates == Counter((b"%d" % key, b"%d" % n) for key in range(3) for n in range(1, 41))

    changelog = f"{name}-counts-changelog"
    assert topics.partitions(changelog) == {changelog: 2}
    assert (
        committed_offsets(connection, name)[f"{name}-in"]
        == topics.end_offsets(f"{name}-in")[f"{name}-in"]
    )
    assert set(lag(connection, name)[f"{name}-in"].values()) == {0}


@pytest.mark.timeout(900)  # seconds on a machine that is not crowded
def test_a_repartition_topic_is_read_once_also_without_the_checkpoint(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(running, "_DELETION_SECONDS", 0.5)
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))

    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder()
    grouped = (
        builder.stream(f"{name}-in")
        .map_values_async(same)
        .group_by(lambda key, value: str(value % 3), Grouped(name="by-three"))
    )
    counts = grouped.count(Materialized(name="counts", changelog=True))
    counts.to_stream().to(f"{name}-out")
    inner = f"{name}-by-three-repartition"
    for numbers in (range(30), range(30, 60), range(60, 90)):
        fill(connection, f"{name}-in", numbers)
        with Streams(
            builder.build(), application_id=name, log=connection,
            checkpoint=str(tmp_path / "cp"), spark=spark, max_records=20,
        ) as streams:  # fmt: skip
            streams.process_all_available("9 minutes")
        if numbers.start:
            shutil.rmtree(tmp_path / "cp")
    updates = Counter((m.key(), m.value()) for m in read(connection, f"{name}-out"))
    assert updates == Counter((b"%d" % key, b"%d" % n) for key in range(3) for n in range(1, 31))
    assert topics.partitions(inner) == {inner: 2}
    assert topics.settings(inner)["retention.ms"] == "-1"
    assert sum(topics.start_offsets(inner)[inner].values()) > 0, "what was read is deleted"
    for topic in (inner, f"{name}-counts-changelog"):
        assert topics.largest_record(topic) > LARGEST_RECORD, "as on the embedded log"


@pytest.mark.timeout(600)
def test_at_least_once_saves_the_transactions_and_loses_nothing(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    topology = counting(name, changelog=False)
    for numbers in (range(30), range(30, 60)):
        fill(connection, f"{name}-in", numbers)
        with Streams(
            topology, application_id=name, log=connection, checkpoint=str(tmp_path / "cp"),
            spark=spark, processing_guarantee="at_least_once",
        ) as streams:  # fmt: skip
            streams.process_all_available("9 minutes")
    found = read(connection, f"{name}-out")
    assert {(m.key(), m.value()) for m in found} == {
        (b"%d" % key, b"%d" % n) for key in range(3) for n in range(1, 21)
    }
    ends = topics.end_offsets(f"{name}-out")[f"{name}-out"]
    assert sum(ends.values()) == len(found), "markers of transactions have offsets too"


def test_a_changelog_without_transactions_is_refused(connection: Connection, name: str) -> None:
    streams = Streams(
        counting(name), application_id=name, log=connection, processing_guarantee="at_least_once"
    )
    with pytest.raises(ConfigurationError, match="one transaction"):
        streams.owned_resources()


def test_a_transaction_has_the_time_that_an_application_asks_for() -> None:
    asked = Streams(
        counting("x"), application_id="x", log="kafka://localhost:1", transaction_timeout="90 s"
    )
    sink = asked._topics.sink("x")  # type: ignore[attr-defined]
    assert (sink.transaction_timeout, sink.delivery_timeout) == (90.0, 90.0)
    with pytest.raises(ConfigurationError, match="exactly once at no extra cost"):
        Streams(counting("x"), application_id="x", log="file:./topics", transaction_timeout="90 s")


@pytest.mark.parametrize(
    ("log", "guarantee", "reason"),
    [
        ("kafka://localhost:1", "perhaps", "exactly_once, at_least_once"),
        ("file:./topics", "at_least_once", "exactly once at no extra cost"),
    ],
)
def test_a_guarantee_that_is_none_is_refused(log: str, guarantee: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Streams(counting("x"), application_id="x", log=log, processing_guarantee=guarantee)


@pytest.mark.timeout(600)
def test_another_folder_is_no_new_beginning_unless_the_application_is_reset(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    fill(connection, f"{name}-in", range(30))

    def started_in(folder: str, **options: Any) -> Streams:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        topology = counting(name, changelog=False)
        return Streams(topology, application_id=name, log=connection, spark=spark, **options)

    with started_in("here") as streams:
        streams.process_all_available("9 minutes")
    with pytest.raises(
        StateError, match=f"has one at {tmp_path / 'here' / 'checkpoints' / name} on"
    ):
        started_in("there").start()
    with started_in("there", allow_state_loss=True) as streams:
        fill(connection, f"{name}-in", range(30, 33))
        streams.process_all_available("9 minutes")
        assert dict(streams.store("counts").all()) == {"0": 1, "1": 1, "2": 1}
    assert len(read(connection, f"{name}-out")) == 33, "it has gone on from its committed offsets"
    with pytest.raises(StateError, match="is not the last one of"):
        started_in("here").start()

    started_in("elsewhere").reset()
    assert not (tmp_path / "there" / "checkpoints" / name).exists()
    assert committed_offsets(connection, name) == {}
    with started_in("elsewhere") as streams:
        streams.process_all_available("9 minutes")
        assert dict(streams.store("counts").all()) == {"0": 11, "1": 11, "2": 11}


@pytest.mark.timeout(600)
def test_a_program_without_state_goes_on_in_another_folder(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    builder = StreamsBuilder()
    builder.stream(f"{name}-in").to(f"{name}-out")
    for run in range(2):
        fill(connection, f"{name}-in", range(run * 30, run * 30 + 30))
        with Streams(
            builder.build(), application_id=name, log=connection,
            checkpoint=str(tmp_path / str(run)), spark=spark,
        ) as streams:  # fmt: skip
            streams.process_all_available("9 minutes")
    assert judge(read(connection, f"{name}-out"), range(60)) == CLEAN


@pytest.mark.timeout(600)
def test_unknown_topics_and_oversized_records_are_the_production_handlers_affair(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=3))
    topics.ensure(f"{name}-small", TopicSpec(partitions=1, settings={"max.message.bytes": "5000"}))
    fill(connection, f"{name}-in", range(12))
    builder = StreamsBuilder()
    chosen = builder.stream(f"{name}-in").map_values(lambda n: "x" * (6_000 if n == 5 else n))
    chosen.to(lambda _, text: f"{name}-{'gone' if text == 'xxx' else 'small'}")
    dead = f"{name}-dead"
    with Streams(
        builder.build(), application_id=name, log=connection, checkpoint=str(tmp_path / "cp"),
        spark=spark, options=TaskOptions(handlers=Handlers(production=DeadLetterQueue(dead))),
    ) as streams:  # fmt: skip
        streams.process_all_available("9 minutes")
        (metrics,) = streams.metrics().values()
        assert (metrics.dropped_records, metrics.dead_letter_records) == (2, 2)
    sizes = {len(message.value() or b"") - 2 for message in read(connection, f"{name}-small")}
    assert sizes == {*range(12)} - {3, 5}
    letters = {int(m.value() or b""): dict(m.headers() or ()) for m in read(connection, dead)}
    messages = {n: str(one["__streams.errors.message"]) for n, one in letters.items()}
    assert set(messages) == {3, 5}, "the input records, not what was made of them"
    assert "there is no topic" in messages[3]
    assert "the record has 60" in messages[5]


@pytest.mark.timeout(600)
def test_a_drained_application_reads_no_further_and_goes_on_when_started_again(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    topology = counting(name)

    def started() -> Streams:
        return Streams(
            topology, application_id=name, log=connection, checkpoint=str(tmp_path / "cp"),
            spark=spark, max_records=20,
        )  # fmt: skip

    fill(connection, f"{name}-in", range(30))
    with started() as streams:
        streams.process_all_available("9 minutes")
        assert streams.drain("1 minute")
        fill(connection, f"{name}-in", range(30, 60))
        time.sleep(3)
        assert sum(streams.lag()[f"{name}-in"].values()) == 30
    with started() as streams:
        streams.process_all_available("9 minutes")
        assert streams.store("counts").get("0") == 20
    assert len(read(connection, f"{name}-out")) == 60
