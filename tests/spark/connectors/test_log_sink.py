"""The embedded log as a source and a sink of Spark: admission, exactly once, restarts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import ConfigurationError, StateError
from thulawa.spark.connectors.kafka_sink import out_records
from thulawa.spark.connectors.log_packed import PackedLogFormat
from thulawa.spark.connectors.log_sink import LogFormat, LogWriter, log_sink
from thulawa.spark.connectors.offsets import by_partition, by_topic
from thulawa.spark.connectors.stream_reader import LogStreamReader, share
from thulawa.spark.map_by_key.api import map_by_key


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        made.create_topic("visits", partitions=2)
        made.create_topic("out", partitions=2)
        yield made


def fill(log: Log, first: int, count: int) -> None:
    with log.producer() as producer:
        for number in range(first, first + count):
            key = b"%d" % (number % 7)
            producer.send("visits", key=key, value=b"%d" % number, timestamp=number,
                          headers={"n": b"x"} if number % 5 == 0 else {})  # fmt: skip


def stream(spark: SparkSession, log: Log, **options: Any) -> DataFrame:
    reader = spark.readStream.format("thulawa").option("subscribe", "visits").options(**options)
    return reader.load(log.address)


def copy_all(df: DataFrame, log: Log, checkpoint: Path) -> StreamingQuery:
    columns = df.select("key", "value", "timestamp", "headers")
    writer = log_sink(columns, log.address, topic="out").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return query


def contents(log: Log, topic: str) -> list[tuple[Any, ...]]:
    return sorted(
        (record.key, record.value, record.timestamp, record.headers)
        for partition in log.end_offsets(topic)
        for record in log.read(topic, partition, 0)
    )


def test_a_copy_keeps_keys_values_timestamps_and_headers(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    fill(log, 0, 300)
    query = copy_all(stream(spark, log, maxOffsetsPerTrigger=120), log, tmp_path / "cp")
    assert contents(log, "out") == contents(log, "visits")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [120, 120, 60]


def test_a_query_goes_on_after_a_restart_and_repeats_no_batch(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    fill(log, 0, 100)
    copy_all(stream(spark, log), log, tmp_path / "cp")
    commits = tmp_path / "cp" / "commits"
    for file in (commits / "0", commits / ".0.crc"):
        file.unlink()  # as if the driver had died between the sink's commit and Spark's
    fill(log, 100, 50)
    copy_all(stream(spark, log), log, tmp_path / "cp")
    assert contents(log, "out") == contents(log, "visits")


def test_a_stream_through_map_by_key_keeps_the_order_of_each_key(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    async def jitter(row: Any) -> bytes:
        import asyncio  # noqa: PLC0415 travels with the function

        await asyncio.sleep((int(row.value) * 7919 % 13) / 1000)
        return bytes(row.value)

    fill(log, 0, 200)
    mapped = stream(spark, log, maxOffsetsPerTrigger=80).transform(
        map_by_key(jitter, key="key", returns="value binary", keep=["key", "timestamp", "headers"])
    )
    copy_all(mapped, log, tmp_path / "cp")
    assert contents(log, "out") == contents(log, "visits")
    for partition in log.end_offsets("out"):
        seen: dict[bytes | None, int] = {}
        for record in log.read("out", partition, 0):
            number = int(record.value or b"-1")
            assert seen.get(record.key, -1) < number
            seen[record.key] = number


def test_a_batch_read_gives_what_is_there_from_the_chosen_offsets(
    spark: SparkSession, log: Log
) -> None:
    log.append({"visits": [ProducerRecord(None, b"%d" % n, (), n, 0) for n in range(10)]})
    reader = spark.read.format("thulawa").option("subscribe", "visits")
    assert reader.load(log.address).count() == 10
    later = reader.option("startingOffsets", json.dumps({"visits": {"0": 7}})).load(log.address)
    assert [row.offset for row in later.collect()] == [7, 8, 9]


@pytest.mark.parametrize(("topic", "goes"), [("out", ["out", "out"]), (None, ["visits", "x"])])
def test_the_topic_of_a_sink_goes_before_that_of_a_row(topic: str | None, goes: list[str]) -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"topic": "visits", "value": "1"}, {"topic": "x", "value": "2"}]
    )
    assert [record.topic for record in out_records(rows, topic)] == goes
    assert list(LogWriter("file:x", topic, None).records(iter([rows]))) == sorted(set(goes))


def test_a_batch_write_goes_to_the_topic_of_each_row(spark: SparkSession, log: Log) -> None:
    rows = spark.createDataFrame([("visits", "a", "1"), ("out", "b", "2")], "topic string, key string, value string")  # fmt: skip  # noqa: E501
    rows.write.format("thulawa").mode("append").save(log.address)
    assert [value for _, value, *_ in contents(log, "visits")] == [b"1"]
    assert [value for _, value, *_ in contents(log, "out")] == [b"2"]


def test_a_trigger_s_records_are_shared_and_what_one_leaves_others_take() -> None:
    ends = by_partition({"a": {"0": 100, "1": 3}, "b": {"0": 100}})
    assert by_topic(share({}, ends, 21)) == {"a": {"0": 9, "1": 3}, "b": {"0": 9}}
    assert share({}, ends, 1_000) == ends
    assert share(ends, ends, 10) == ends


def test_topics_that_are_read_whole_come_to_their_end_and_leave_the_limit_to_others(
    log: Log,
) -> None:
    fill(log, 0, 100)
    log.create_topic("names")
    log.append({"names": [ProducerRecord(b"%d" % n, b"") for n in range(400)]})
    options = {
        "path": log.address,
        "subscribe": "visits,names",
        "unboundedTopics": "names",
        "function": "",
    }
    options["maxOffsetsPerTrigger"] = "10"
    source = PackedLogFormat(options=CaseInsensitiveDict(options)).streamReader(StructType())
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    assert end["names"] == {"0": 400}
    assert end["visits"] == {"0": 5, "1": 5}


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "3"}], ids=str)
def test_a_topic_that_was_made_anew_is_refused_and_not_skipped(
    log: Log, limit: dict[str, str]
) -> None:
    options = {"path": log.address, "subscribe": "visits"} | limit
    source = LogFormat(options=CaseInsensitiveDict(options)).streamReader(StructType())
    fill(log, 0, 100)
    read = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    log.delete_topic("visits")
    log.create_topic("visits", partitions=2)
    fill(log, 0, 10)
    with pytest.raises(StateError, match="'visits' was deleted and created again"):
        source.latestOffset(read, source.getDefaultReadLimit())


@pytest.mark.parametrize("now", ["1", "3", None])
@pytest.mark.parametrize(("before", "wanted"), [("2", 2), ("4", 4), (None, 4)])
def test_a_batch_that_is_run_again_is_dealt_out_as_it_was(
    tmp_path: Path, before: str | None, wanted: int, now: str | None
) -> None:
    def reader(most: str | None) -> LogStreamReader:
        options = {"path": log.address, "subscribe": "visits"}
        chosen = CaseInsensitiveDict(options if most is None else options | {"maxPartitions": most})
        return LogFormat(options=chosen).streamReader(StructType())

    def dealt(by: LogStreamReader) -> list[list[Any]]:
        return [one.ranges for one in by.partitions(start, end)]

    with Log(f"file:{tmp_path / 'topics'}") as log:
        log.create_topic("visits", partitions=4)
        log.append({"visits": [ProducerRecord(None, b"", (), 0, n % 4) for n in range(20)]})
        first = reader(before)
        start = first.initialOffset()
        end = first.latestOffset(start, first.getDefaultReadLimit())
        assert len(dealt(first)) == wanted
        assert dealt(reader(now)) == dealt(first)
        assert first.latestOffset(end, first.getDefaultReadLimit()) == end


@pytest.mark.parametrize(
    ("options", "columns", "reason"),
    [
        ({}, "value string", "needs a path"),
        ({"path": "file:x"}, "value string", "topic"),
        ({"path": "file:x", "topic": "t"}, "key string", "column value"),
        ({"path": "file:x", "topic": "t"}, "value string, extra int", "extra"),
        ({"path": "file:x", "topic": "t"}, "value int", "value as binary or string, not as int"),
        ({"path": "file:x", "topic": "t"}, "value struct<a:int>", "to_json"),
        ({"path": "file:x", "topic": "t"}, "value string, partition string", "partition as int"),
        ({"path": "file:x", "topic": "t"}, "value string, timestamp long", "timestamp as timestam"),
        (
            {"path": "file:x", "topic": "t"},
            "value string, headers map<string,binary>",
            "headers as array<struct<key:string,value:binary>>, not as map",
        ),
    ],
)
def test_a_sink_that_cannot_work_is_refused(
    spark: SparkSession, options: dict[str, str], columns: str, reason: str
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(ConfigurationError, match=reason):
        LogWriter.of(options, schema)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": ""}, "needs a path and topics"),
        ({"startingOfsets": "latest"}, r"no options \['startingofsets'\]; it has path, subscribe"),
        ({"maxPartitions": "0"}, "maxPartitions='0': use a whole number from 1 on"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger='many': use a whole number"),
        ({"startingOffsets": "soon"}, "startingOffsets='soon': use 'earliest'"),
        ({"startingOffsets": "[1]"}, "use 'earliest'"),
        ({"startingOffsets": '{"visits": {"9": 0}}'}, "visits has no partition '9'"),
        ({"startingOffsets": '{"visits": {"0": 7}}'}, "ends at 0, so it has no offset 7"),
        ({"startingOffsets": '{"visits": {"0": "a"}}'}, "no offset 'a'"),
        ({"startingOffsets": '{"visit": {"0": 0}}'}, r"\['visit'\], which are not subscribed to"),
    ],
    ids=str,
)
def test_a_source_that_cannot_work_is_refused(
    log: Log, options: dict[str, str], reason: str
) -> None:
    chosen = CaseInsensitiveDict({"path": log.address, "subscribe": "visits"} | options)
    source = LogFormat(options=chosen)
    with pytest.raises(ConfigurationError, match=reason):
        source.streamReader(StructType()).initialOffset()


@pytest.mark.parametrize("way", ["writer", "streamWriter"])
def test_a_topic_is_not_overwritten(log: Log, way: str) -> None:
    options = {"path": log.address, "topic": "out", "layout": "one"}
    sink = LogFormat(options=CaseInsensitiveDict(options))
    schema = StructType().add("value", "string")
    assert getattr(sink, way)(schema, overwrite=False) is not None
    with pytest.raises(ConfigurationError, match="can only be appended to"):
        getattr(sink, way)(schema, overwrite=True)
