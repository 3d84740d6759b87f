"""Kafka as a source and a sink of Spark, on a real broker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from tests.brokers.conftest import PASSWORDS
from tests.brokers.kafka.helpers import CLEAN, fill, judge, read
from tests.spark.faults import fail, struck_within
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.routing import Policies
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    UnknownTopic,
)
from thulawa.priority.buckets import Buckets
from thulawa.spark.connectors.kafka_progress import progress_offsets
from thulawa.spark.connectors.kafka_sink import FORMAT, KafkaFormat, kafka_sink, options_of, sink_of
from thulawa.spark.connectors.kafka_source import kafka_source


def copy_all(df: DataFrame, sink: SinkSpec, topic: str, checkpoint: Path) -> list[dict[str, Any]]:
    columns = df.select("key", "value", "timestamp", "headers")
    query = (
        kafka_sink(columns, sink, topic=topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [dict(progress) for progress in query.recentProgress]


def facts(connection: Connection, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        (m.partition(), m.key(), m.value(), m.timestamp(), m.headers())
        for m in read(connection, topic)
    )


def test_a_copy_keeps_partitions_keys_values_timestamps_headers_and_repeats_no_batch(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic, TopicSpec(partitions=2))
    sink = SinkSpec(connection=connection, application=name)
    fill(connection, f"{name}-in", range(300))
    source = kafka_source(spark, connection, f"{name}-in", max_records=200)
    progress = copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert sum(one["numInputRows"] for one in progress) == 300
    assert facts(connection, f"{name}-out") == facts(connection, f"{name}-in")

    last = progress[-1]["batchId"]
    for file in (tmp_path / "cp/commits" / f"{last}", tmp_path / "cp/commits" / f".{last}.crc"):
        file.unlink()  # as if the driver had died between the sink's commit and Spark's
    fill(connection, f"{name}-in", range(300, 350))
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert judge(read(connection, f"{name}-out"), range(350)) == CLEAN


def test_a_sink_does_not_take_rows_that_were_cut_off_for_all_there_are(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic)
    fill(connection, f"{name}-in", range(30_000))
    source = kafka_source(spark, connection, f"{name}-in")
    passing = struck_within(tmp_path / "struck", fail, 25_000)
    sink = SinkSpec(connection=connection, application=name)
    copy_all(source.mapInArrow(passing, source.schema), sink, f"{name}-out", tmp_path / "cp")
    assert judge(read(connection, f"{name}-out"), range(30_000)) == CLEAN
    assert (tmp_path / "struck").exists()


def test_a_source_reads_by_pattern_from_chosen_offsets_with_a_password(
    spark: SparkSession, broker: DevBroker, connection: Connection, topics: Topics, name: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    for topic in (f"{name}-a", f"{name}-b", f"{name}-out"):
        topics.ensure(topic)
        fill(connection, topic, range(10) if topic != f"{name}-out" else ())
    secured = broker.secured("ann", PASSWORDS["ann"])
    source = kafka_source(
        spark, secured, pattern=f"{name}-[ab]",
        starting={f"{name}-a": {0: 8}, f"{name}-b": {0: 9}},
    )  # fmt: skip
    assert PASSWORDS["ann"] not in source._jdf.queryExecution().toString()
    sink = SinkSpec(connection=secured, application=name, guarantee="at_least_once")
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert sorted(int(m.value() or b"") for m in read(connection, f"{name}-out")) == [8, 9, 9]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"minPartitions": "8"}, "splits"),
        ({"maxRecordsPerPartition": "10"}, "splits"),
        ({"failOnDataLoss": "False"}, "always end the query"),
        ({"groupIdPrefix": "x"}, "no option groupIdPrefix, .* it has maxPartitions"),
        ({"kafka.client.rack": "x"}, r"Connection\(address, settings\)"),
        ({"startingOffsets": "latest"}, "starting="),
    ],
)
def test_options_that_end_the_order_or_hide_losses_are_refused(
    spark: SparkSession, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        kafka_source(spark, "localhost:1", "visits", options=options)


def test_a_source_that_cannot_work_is_refused_at_once(
    spark: SparkSession, broker: DevBroker, connection: Connection, name: str
) -> None:
    with pytest.raises(BrokerUnreachable, match="nobody answered"):
        kafka_source(spark, "127.0.0.1:1", name)
    with pytest.raises(UnknownTopic, match=name):
        kafka_source(spark, connection, name)
    with pytest.raises(AuthenticationFailed) as caught:
        kafka_source(spark, broker.secured("ann", "not-it"), name)
    assert "not-it" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="pattern"):
        kafka_source(spark, connection, name, pattern="x.*")
    starting: Any = "newest"
    with pytest.raises(ConfigurationError, match="earliest, latest or"):
        kafka_source(spark, connection, name, starting=starting)


def test_partitions_without_a_starting_offset_begin_with_their_first_record(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        topics.ensure(topic, TopicSpec(partitions=2))
    fill(connection, f"{name}-in", range(20))
    ends = topics.end_offsets(f"{name}-in")[f"{name}-in"]
    source = kafka_source(spark, connection, f"{name}-in", starting={f"{name}-in": {0: ends[0]}})
    sink = SinkSpec(connection=connection, application=name, guarantee="at_least_once")
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    expected = [one for one in facts(connection, f"{name}-in") if one[0] == 1]
    assert expected
    assert facts(connection, f"{name}-out") == expected
    with pytest.raises(ConfigurationError, match=r"starting .* other-0, which is not read"):
        kafka_source(spark, connection, f"{name}-in", starting={"other": {0: 1}})


def test_a_batch_that_is_run_again_has_its_partitions_in_the_same_tasks(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    # Java's hash of these puts partition 1 before 0; offsets in a checkpoint are in order
    names = (f"{name}-{number}" for number in range(20))
    topic = next(one for one in names if _java_order(one) == [1, 0])
    topics.ensure(topic, TopicSpec(partitions=2))
    fill(connection, topic, range(40))
    source = kafka_source(spark, connection, topic)
    places: list[set[tuple[int, int]]] = []
    for _ in range(2):
        writer = source.selectExpr("spark_partition_id() AS task", "partition").writeStream
        query = (
            writer.foreachBatch(lambda rows, _: places.append({tuple(r) for r in rows.collect()}))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for file in (tmp_path / "cp/commits/0", tmp_path / "cp/commits/.0.crc"):
            file.unlink()
    assert len(places[0]) == 2
    assert places[0] == places[1]
    (offsets,) = progress_offsets(query.lastProgress).values()
    assert sum(offsets.values()) == 40


def _java_order(topic: str) -> list[int]:
    """Give the order of two partitions in a small map of Java's."""
    text = 0
    for letter in topic:
        text = (31 * text + ord(letter)) & 0xFFFFFFFF

    def bucket(partition: int) -> int:
        mixed = (31 * (31 + partition) + text) & 0xFFFFFFFF
        return (mixed ^ mixed >> 16) & 3

    return sorted((0, 1), key=bucket)


def test_a_sink_reaches_the_workers_whole() -> None:
    spec = TopicSpec(partitions=3, cleanup="compact", copies=2, settings={"retention.ms": "5"})
    sink = SinkSpec(
        connection=Connection("a:1", {"sasl.password": "x"}),
        application="app",
        name="other",
        guarantee="at_least_once",
        policies=Policies(missing="create", oversized="dead_letter", dead_letter="d", spec=spec),
        buckets=Buckets({"a": 50, "b": 50}),
        transaction_timeout=70.5,
        delivery_timeout=7.25,
        markers="m",
    )
    assert sink_of(options_of(sink, "t")) == sink


def test_a_sink_behind_tasks_that_may_move_is_refused(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(name)
    sink = SinkSpec(connection=connection, application=name)
    columns = ["key", "value"]
    steady = kafka_source(spark, connection, name).select(columns)
    rate = spark.readStream.format("rate").load()
    binary = rate.value.cast("string").cast("binary")
    plain = rate.select(binary.alias("key"), binary.alias("value"))
    with pytest.raises(ConfigurationError, match="the source rate"):
        kafka_sink(plain, sink, topic=name)
    for moving in (steady.coalesce(2), steady.repartition(2, "key"), steady.repartition("key")):
        with pytest.raises(ConfigurationError, match="may put rows into other tasks"):
            kafka_sink(moving, sink, topic=name)
    kafka_sink(plain.coalesce(1), sink, topic=name)
    kafka_sink(steady.coalesce(2), replace(sink, guarantee="at_least_once"), topic=name)
    bare = steady.writeStream.format(FORMAT).options(**options_of(sink, name))
    bare = bare.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"Write with thulawa\.kafka_sink"):
        bare.start().awaitTermination()


def test_the_bare_format_is_refused_before_it_asks_for_options() -> None:
    columns = StructType([StructField("value", StringType())])
    with pytest.raises(ConfigurationError, match=r"Write with thulawa\.kafka_sink"):
        KafkaFormat({}).streamWriter(columns, overwrite=False)
