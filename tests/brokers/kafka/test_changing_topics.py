"""Topics that change under a query on Spark: a clear error, or it goes on; nothing lost."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.brokers.kafka.helpers import CLEAN, counting, fill, judge, read
from tests.brokers.kafka.test_spark import copy_all
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.errors import StateLoss, UnknownTopic
from thulawa.spark.application import Streams
from thulawa.spark.connectors.kafka_source import kafka_source
from thulawa.streams.operator_options import Materialized
from thulawa.streams.streams_builder import StreamsBuilder

pytestmark = pytest.mark.timeout(600)  # a broker and Spark are started within the first


def test_an_input_topic_that_is_deleted_ends_the_query_with_its_name(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for one in (f"{name}-in", f"{name}-out"):
        topics.ensure(one)
    fill(connection, f"{name}-in", range(20))
    sink = SinkSpec(connection=connection, application=name)
    source = kafka_source(spark, connection, f"{name}-in")
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    topics.delete_topic(f"{name}-in")
    with pytest.raises(StreamingQueryException, match=f"{name}-in"):
        copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    with pytest.raises(UnknownTopic, match=f"{name}-in"):
        kafka_source(spark, connection, f"{name}-in")
    assert judge(read(connection, f"{name}-out"), range(20)) == CLEAN


def test_more_partitions_are_read_by_a_query_without_state(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    for one in (f"{name}-in", f"{name}-out"):
        topics.ensure(one)
    fill(connection, f"{name}-in", range(20))
    sink = SinkSpec(connection=connection, application=name)
    source = kafka_source(spark, connection, f"{name}-in")
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    topics.ensure_partitions(f"{name}-in", 3)
    fill(connection, f"{name}-in", range(20, 90))
    copy_all(source, sink, f"{name}-out", tmp_path / "cp")
    assert judge(read(connection, f"{name}-out"), range(90)) == CLEAN


def test_more_partitions_end_an_application_with_state_and_join_its_tasks_if_that_is_allowed(
    spark: SparkSession,
    connection: Connection,
    topics: Topics,
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    builder = StreamsBuilder()
    counts = builder.stream(f"{name}-in").group_by_key().count(Materialized.as_("counts"))
    counts.to_stream().to(f"{name}-out")
    topology = builder.build()

    def started(**options: Any) -> Streams:
        return Streams(
            topology, application_id=name, log=f"kafka://{connection.bootstrap}",
            checkpoint=str(tmp_path), spark=spark, **options,
        )  # fmt: skip

    with started(on_error="restart") as streams:
        fill(connection, f"{name}-in", range(20))
        streams.process_all_available("90 s")
        topics.ensure_partitions(f"{name}-in", 3)
        fill(connection, f"{name}-in", range(20, 60))
        with pytest.raises(StateLoss, match=r"partition 2 of .* is new"):
            streams.await_termination("120 s")
    assert len(read(connection, f"{name}-out")) >= 20
    with pytest.raises(StateLoss, match=r"partition 2 of .* is new.*'counts'"):
        started().start()
    allowed = started(allow_state_loss=True)
    with caplog.at_level("WARNING", "thulawa.streams"), allowed as streams:
        streams.process_all_available("90 s")
    assert "partition 2 of" in caplog.text
    assert len(read(connection, f"{name}-out")) == 60, "each record counts once"


def test_more_partitions_are_read_by_an_application_with_state_and_nothing_is_lost(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(f"{name}-in", TopicSpec(partitions=2))
    with Streams(
        counting(name, changelog=False), application_id=name, log=f"kafka://{connection.bootstrap}",
        checkpoint=str(tmp_path), spark=spark,
    ) as streams:  # fmt: skip
        fill(connection, f"{name}-in", range(30))
        streams.process_all_available("90 s")
        topics.ensure_partitions(f"{name}-in", 3)
        fill(connection, f"{name}-in", range(30, 90))
        streams.process_all_available("90 s")
    updates = Counter((m.key(), m.value()) for m in read(connection, f"{name}-out"))
    assert updates == Counter((b"%d" % key, b"%d" % n) for key in range(3) for n in range(1, 31))
