"""Kafka as a source on Spark: which records are read when topics come, go, grow and are cut."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.brokers.kafka.helpers import CLEAN, fill, judge, read
from tests.brokers.kafka.test_spark import copy_all
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.errors import QueryFailed
from thulawa.spark.application import Streams
from thulawa.spark.connectors.kafka_progress import progress_offsets
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.streams import StreamsBuilder
from thulawa.streams.operator_options import Materialized
from thulawa.topology.topology import Topology

pytestmark = pytest.mark.timeout(600)  # a broker and Spark are started within the first


def cut(connection: Connection, topic: str, before: int) -> None:
    """Delete the first records of partition 0, as retention does."""
    client = AdminClient(connection.client())
    for answer in client.delete_records([TopicPartition(topic, 0, before)]).values():
        answer.result(30)


def produce(connection: Connection, topic: str, records: Sequence[tuple[str, str, int]]) -> None:
    producer = Producer(connection.client(partitioner="murmur2_random"))
    for key, value, time in records:
        producer.produce(topic, value, key, timestamp=time)
    assert producer.flush(30) == 0


def test_partitions_and_topics_come_and_go_between_runs_and_each_record_is_read_once(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    first, other, output = f"{name}-a", f"{name}-b", f"{name}-out"
    for topic in (first, other, output):
        topics.ensure(topic)
    sink = SinkSpec(connection=connection, application=name)

    def copy(*names: str) -> None:
        source = kafka_source(spark, connection, names, max_records=40)
        copy_all(source, sink, output, tmp_path / "cp")

    fill(connection, first, range(50))
    copy(first)
    topics.ensure_partitions(first, 6)
    fill(connection, first, range(50, 150))
    copy(first)
    fill(connection, other, range(1_000, 1_020))
    cut(connection, other, 20)  # its first offset is 20 now
    fill(connection, other, range(150, 200))
    copy(first, other)
    fill(connection, first, range(2_000, 2_010))  # which nobody reads
    fill(connection, other, range(200, 250))
    copy(other)
    assert judge(read(connection, output), range(250)) == CLEAN
    assert "thulawa-padding" not in topics.topics()


def test_there_are_no_more_tasks_than_cores_and_as_many_when_it_is_run_again(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(name, TopicSpec(partitions=7))
    fill(connection, name, range(100), keys=50)
    cores = spark.sparkContext.defaultParallelism
    tasks: list[set[tuple[int, int]]] = []
    for options in (None, {"maxpartitions": "1"}, {"maxpartitions": "1"}):
        source = kafka_source(spark, connection, name, options=options)
        writer = source.selectExpr("spark_partition_id() AS task", "partition").writeStream
        query = (
            writer.foreachBatch(lambda rows, _: tasks.append({tuple(r) for r in rows.collect()}))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if len(tasks) == 1:  # the next run has this batch again
            for file in (tmp_path / "cp/commits/0", tmp_path / "cp/commits/.0.crc"):
                file.unlink()
            continue
        fill(connection, name, range(100, 200), keys=50)
    assert len({task for task, _ in tasks[0]}) == min(7, cores)
    assert tasks[1] == tasks[0]
    assert {task for task, _ in tasks[2]} == {0}


def test_records_that_are_deleted_before_they_are_read_end_the_query(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic)
    fill(connection, f"{name}-in", range(20))
    source = kafka_source(spark, connection, f"{name}-in")
    sink = SinkSpec(connection=connection, application=name)
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    fill(connection, f"{name}-in", range(20, 40))
    cut(connection, f"{name}-in", 30)
    with pytest.raises(StreamingQueryException, match=f"OffsetOutOfRange.*{name}-in"):
        copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert judge(read(connection, f"{name}-out"), range(20)) == CLEAN


@pytest.mark.parametrize("records", [10, 20, 40])
def test_a_topic_that_is_deleted_and_created_again_is_refused(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path,
    records: int,
) -> None:  # fmt: skip
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic)
    fill(connection, f"{name}-in", range(20))
    source = kafka_source(spark, connection, f"{name}-in")
    sink = SinkSpec(connection=connection, application=name)
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    recreate(topics, f"{name}-in")
    fill(connection, f"{name}-in", range(100, 100 + records))
    with pytest.raises(StreamingQueryException, match=f"{name}-in' was deleted and created again"):
        copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert judge(read(connection, f"{name}-out"), range(20)) == CLEAN


def recreate(topics: Topics, topic: str) -> None:
    topics.delete_topic(topic)
    while topic in topics.topics():  # deleting takes the broker a moment
        pass
    topics.ensure(topic)


def test_lag_is_that_of_the_topics_that_are_read(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(name, TopicSpec(partitions=3))
    fill(connection, name, range(300), keys=100)
    source = kafka_source(spark, connection, name, max_records=30)
    writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    behind = []
    for one in query.recentProgress:
        (latest,) = ends(one, "latestOffset").values()
        (done,) = ends(one, "endOffset").values()
        assert {*latest} == {*done} == {"0", "1", "2"}
        behind.append(sum(latest.values()) - sum(done.values()))
    assert behind[0] == 270
    assert behind[-1] == 0
    assert progress_offsets(query.lastProgress) == topics.end_offsets(name)


def ends(progress: Any, which: str) -> dict[str, dict[str, int]]:
    found = json.loads(progress["sources"][0][which])
    return {topic: places for topic, places in found.items() if topic != "#"}


def streams(
    topology: Topology, connection: Connection, name: str, folder: Path, spark: SparkSession,
    **options: Any,
) -> Streams:  # fmt: skip
    return Streams(
        topology, application_id=name, log=f"kafka://{connection.bootstrap}",
        checkpoint=str(folder), spark=spark, **options,
    )  # fmt: skip


def counting(name: str, *inputs: str) -> Topology:
    builder = StreamsBuilder()
    for one in inputs:
        counts = builder.stream(f"{name}-{one}").group_by_key().count(Materialized.as_(one))
        counts.to_stream().to(f"{name}-out")
    return builder.build()


def test_an_application_starts_when_its_program_reads_one_topic_more_or_less(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for one in ("a", "b"):
        topics.ensure(f"{name}-{one}", TopicSpec(partitions=2))
    fill(connection, f"{name}-a", range(20))
    fill(connection, f"{name}-b", range(20))
    cut(connection, f"{name}-b", 3)
    kept = 20 - topics.start_offsets(f"{name}-b")[f"{name}-b"][0]
    for inputs in (("a",), ("a", "b"), ("b",)):
        made = counting(name, *inputs)
        loss = {"allow_state_loss": True} if inputs == ("b",) else {}
        with streams(made, connection, name, tmp_path, spark, **loss) as running:
            running.process_all_available("120 s")
            assert running.lag().keys() == {f"{name}-{one}" for one in inputs}
    assert len(read(connection, f"{name}-out")) == 20 + kept


def test_an_application_refuses_a_topic_that_was_created_again(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-a")
    fill(connection, f"{name}-a", range(20))
    made = counting(name, "a")
    with streams(made, connection, name, tmp_path, spark) as running:
        running.process_all_available("120 s")
    recreate(topics, f"{name}-a")
    fill(connection, f"{name}-a", range(30))
    with (
        streams(made, connection, name, tmp_path, spark) as running,
        pytest.raises(QueryFailed, match=f"{name}-a' was deleted and created again"),
    ):
        running.await_termination("120 s")
    assert len(read(connection, f"{name}-out")) == 20


def test_tables_meet_streams_whatever_the_limit_of_a_batch(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    users = [(f"u{n}", f'"name {n}"', 1_000 + n) for n in range(300)]
    clicks = [(f"u{n}", f'"{n}"', 5_000 + n) for n in range(300)]
    for topic in ("users", "clicks", "rates"):
        topics.ensure(f"{name}-{topic}", TopicSpec(partitions=2))
    produce(connection, f"{name}-users", users)
    produce(connection, f"{name}-rates", users)
    produce(connection, f"{name}-clicks", clicks)
    builder = StreamsBuilder()
    table = builder.table(f"{name}-users")
    rates = builder.global_table(f"{name}-rates")
    joined = builder.stream(f"{name}-clicks").left_join(table, lambda click, user: [click, user])
    joined.left_join(rates, lambda key, value: key, lambda value, rate: [*value, rate]).to(
        f"{name}-out"
    )
    with streams(builder.build(), connection, name, tmp_path, spark, max_records=100) as running:
        running.process_all_available("120 s")
    found = Counter(message.value() for message in read(connection, f"{name}-out"))
    assert found == Counter(f'["{n}","name {n}","name {n}"]'.encode() for n in range(300))
