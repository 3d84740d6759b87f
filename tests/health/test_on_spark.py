"""Windows are counted exactly, by any number of instances, from the output topic alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.health.helpers import FIRST, LINES, SUMS, is_valid, lines_of, story, values
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import ConfigurationError, TopicDiffers, UnknownTopic
from thulawa.health import Count, WindowCounts, count_windows, merged, read_counts
from thulawa.health.dataframes import DataFrameSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counting(spark: "SparkSession", address: str, **more: Any) -> WindowCounts:
    given: dict[str, Any] = {"status": is_valid, "output": "metrics", "application_id": "health"}
    return WindowCounts("tx", log=address, spark=spark, **(given | more))


def sums(rows: list[Any]) -> list[tuple[int, int, int]]:
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        found.setdefault(int(row.window.timestamp() * 1000), {})[row.status] = row.value
    return [(window, one["valid"], one["invalid"]) for window, one in sorted(found.items())]


def test_the_story_gives_its_eleven_lines(spark: "SparkSession", tmp_path: Path) -> None:
    address = story(tmp_path)
    shown: list[Count] = []
    health = counting(spark, address, sinks=[shown.extend])
    assert health.count_available() == 21
    assert health.count_available() == 0
    with Log(address) as log:
        assert lines_of(log, "metrics") == LINES
        assert log.describe("metrics").compact
        assert log.topics() == ["metrics", "tx"]
    assert values(shown) == values(health.counts())
    assert {one.value for one in merged(shown) if one.cell.status == "valid"} == {7, 4}
    assert sums(read_counts(spark, address, "metrics", merge=True).collect()) == SUMS
    assert read_counts(spark, address, "metrics").count() == 11


def test_another_instance_continues_at_the_offset_of_the_first(
    spark: "SparkSession", tmp_path: Path
) -> None:
    address = story(tmp_path)
    counting(spark, address).count_available()
    with Log(address) as log:
        late = ProducerRecord(None, b"i", (), FIRST, 0)  # two windows late
        log.append({"tx": [late, ProducerRecord(None, b"v", (), FIRST + 9000, 1)]})
    shown: list[Count] = []
    after = counting(spark, address, sinks=[shown.extend])
    assert after.starting_offsets() == {"tx": {"0": 10, "1": 11}}
    del shown[:]
    assert after.count_available() == 2
    assert {(one.cell.window, one.value) for one in shown} == {(FIRST, 2), (FIRST + 9000, 1)}


def test_a_running_instance_counts_new_messages(spark: "SparkSession", tmp_path: Path) -> None:
    address = story(tmp_path)
    with counting(spark, address, every="50 ms", partitions="shared") as health:
        health.process_all_available("60 s")
        with Log(address) as log:
            log.append({"tx": [ProducerRecord(None, b"v", (), FIRST, 0)]})
        health.process_all_available("60 s")
        assert max(count.value or 0 for count in health.counts()) == 5
    assert health.stop()


def test_a_streaming_query_may_be_counted_by_batch(spark: "SparkSession", tmp_path: Path) -> None:
    address = story(tmp_path)
    health = counting(spark, address)
    rows = spark.readStream.format("thulawa").option("subscribe", "tx").load(address)
    for attempt in range(2):  # the second time, from a new checkpoint, all rows come again
        writer = rows.writeStream.foreachBatch(health.count_batch).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint-{attempt}")
        writer.start().awaitTermination()
    with Log(address) as log:
        assert lines_of(log, "metrics") == LINES


def test_a_query_that_begins_too_late_is_rejected(spark: "SparkSession", tmp_path: Path) -> None:
    address = story(tmp_path)
    health = counting(spark, address)
    rows = spark.read.format("thulawa").option("subscribe", "tx").load(address)
    late = rows.where("partition = 1 or offset >= 3")
    with pytest.raises(ConfigurationError, match=r"offset 3 of tx-0.*starting_offsets"):
        health.count_batch(late)
    with Log(address) as log:
        assert lines_of(log, "metrics") == {}
    health.count_batch(rows.where("offset < 6"))
    health.count_batch(rows.where("offset >= 6"))
    with Log(address) as log:
        assert lines_of(log, "metrics") == LINES


def test_rows_are_counted_in_any_dataframe(spark: "SparkSession", tmp_path: Path) -> None:
    rows = spark.read.format("thulawa").option("subscribe", "tx").load(story(tmp_path))
    counted = rows.transform(count_windows(is_valid, window="1 minute"))
    found = {(row.partition, row.status): row["count"] for row in counted.collect()}
    assert found == {(0, "valid"): 7, (0, "invalid"): 3, (1, "valid"): 8, (1, "invalid"): 3}
    with pytest.raises(ConfigurationError, match="offset"):
        rows.drop("offset").transform(count_windows(is_valid))


def test_totals_go_to_any_sink_of_a_dataframe(spark: "SparkSession", tmp_path: Path) -> None:
    address = story(tmp_path)
    sink = DataFrameSink(lambda df: df.write.mode("append").parquet(f"{tmp_path}/counts"))
    counting(spark, address, sinks=[sink], merge=True).count_available()
    rows = spark.read.parquet(f"{tmp_path}/counts").collect()
    assert sums(rows) == SUMS
    assert {row.partition for row in rows} == {None}


def test_topics_and_rows_that_cannot_be_counted_are_rejected(
    spark: "SparkSession", tmp_path: Path
) -> None:
    address = story(tmp_path)
    with pytest.raises(UnknownTopic):
        WindowCounts(
            "nowhere", status=is_valid, output="metrics", application_id="a", log=address
        ).start()
    with pytest.raises(UnknownTopic, match="metricss"):
        read_counts(spark, address, "metricss")
    with pytest.raises(ConfigurationError, match="kafka://"):
        read_counts(spark, "localhost:9092", "metrics")
    with Log(address) as log:
        log.create_topic("plain")
    with pytest.raises(TopicDiffers, match="not compacted"):
        counting(spark, address, output="plain").start()
    with pytest.raises(ConfigurationError, match="another"):
        counting(spark, address, output="tx")
    with pytest.raises(ConfigurationError, match="expire"):
        counting(spark, address, window="1 day", expire="1 hour")
