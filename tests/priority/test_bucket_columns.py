"""Buckets on Spark: columns, the embedded log's sink and source, one query over all of them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import thulawa
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import STAMP, Buckets
from thulawa.spark.connectors.kafka_sink import KafkaFormat
from thulawa.spark.connectors.log_sink import LogWriter, log_sink
from thulawa.spark.connectors.log_source import LogReader
from thulawa.spark.connectors.stream_reader import LogStreamReader, share

TWO = Buckets({"Platinum": 70, "Gold": 30})
DROP = Buckets({"Platinum": 70, "Gold": 30}, unknown="drop")
words = st.sampled_from(["Platinum-1", "Gold-2", "Gold", " Gold -x", "", "a-Platinum", "Gold|1"])
keys = st.none() | st.text(st.characters(exclude_categories=["Cs"])) | words


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        made.create_topic("orders", partitions=6)
        yield made


def ends(log: Log, topic: str = "orders") -> list[int]:
    return [*log.end_offsets(topic).values()]


def stamps(log: Log) -> set[bytes | None]:
    return {
        dict(record.headers).get(STAMP)
        for partition in log.end_offsets("orders")
        for record in log.read("orders", partition, 0)
    }


def orders(spark: SparkSession, *names: str | None) -> DataFrame:
    return spark.createDataFrame([(name, "v") for name in names], "key string, value string")


OF_ALL_KINDS = [
    Buckets({"Platinum": 70, "Gold": 30}, default="Gold"),
    DROP,
    Buckets({"Gold": 30, "Platinum": 70}, unknown="spread", delimiter="|"),
    Buckets({"a": 50, "b": 50}, bucket_of=lambda key: "ab"[len(key or "") % 2]),
]


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(keys, min_size=100, max_size=400), st.integers(2, 40))
def test_the_columns_are_what_the_buckets_say_of_any_key(
    spark: SparkSession, keys: list[str | None], partitions: int
) -> None:
    df = spark.createDataFrame([(key,) for key in keys], "key string").select(
        "key",
        *(thulawa.priority.partition_column(kind, "key", partitions) for kind in OF_ALL_KINDS),
        *(thulawa.priority.bucket_column(kind, "key") for kind in OF_ALL_KINDS),
    )
    for key, *found in df.collect():
        places, names = found[: len(OF_ALL_KINDS)], found[len(OF_ALL_KINDS) :]
        assert names == [kind.bucket(key) for kind in OF_ALL_KINDS]
        if key is not None:  # those without one take turns
            assert places == [kind.partition(key, partitions) for kind in OF_ALL_KINDS]


def test_a_column_of_bytes_is_one_of_keys_too(spark: SparkSession) -> None:
    df = orders(spark, "Gold-7", "Gold-8", "Platinum-7").selectExpr("cast(key as binary) key")
    column = thulawa.priority.partition_column(TWO, "key", 6)
    found = {row.key: row[1] for row in df.select("key", column).collect()}
    assert found == {bytes(key): TWO.partition(bytes(key), 6) for key in found}


def test_a_key_of_no_bucket_fails_the_query_where_nothing_else_was_chosen(
    spark: SparkSession,
) -> None:
    df = orders(spark, "Silver-1").select(thulawa.priority.bucket_column(TWO, "key"))
    with pytest.raises(PythonException, match="and the buckets are"):
        df.collect()


def test_the_sink_puts_rows_into_their_bucket_and_stamps_them(
    spark: SparkSession, log: Log
) -> None:
    rows = orders(spark, *(f"{'Platinum' if n % 2 else 'Gold'}-{n}" for n in range(100)), "x")
    writer = rows.write.format("thulawa").option("topic", "orders").option("buckets", DROP.text)
    writer.mode("append").save(log.address)
    assert sum(ends(log)[:4]) == sum(ends(log)[4:]) == 50
    assert stamps(log) == {DROP.fingerprint.encode()}
    for partition in log.end_offsets("orders"):
        for record in log.read("orders", partition, 0):
            assert partition == DROP.partition(record.key, 6)


def test_a_writer_of_another_layout_is_refused_by_sink_and_producer(
    spark: SparkSession, log: Log
) -> None:
    with log.producer(buckets=TWO) as producer:
        producer.send("orders", key=b"Gold-1")
    other = Buckets({"Platinum": 60, "Gold": 40})
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        log.producer(buckets=other).send("orders", key=b"Gold-1")
    writer = orders(spark, "Gold-1").write.format("thulawa").option("topic", "orders")
    with pytest.raises(Exception, match="another layout of buckets"):
        writer.option("buckets", other.text).mode("append").save(log.address)
    assert sum(ends(log)) == 1
    known = Buckets({"Platinum": 60, "Gold": 40}, accepts=(TWO.fingerprint,))
    with log.producer(buckets=known) as producer:
        producer.send("orders", key=b"Gold-1")
    assert sum(ends(log)) == 2


def test_a_reader_of_another_layout_is_refused(spark: SparkSession, log: Log) -> None:
    with log.producer(buckets=TWO) as producer:
        producer.send("orders", key=b"Gold-1")
        producer.send("orders", key=b"Silver-1", partition=0)  # where it says, without a stamp
    other = Buckets({"Platinum": 60, "Gold": 40})
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        log.consumer("orders", buckets=other).poll()
    reader = spark.read.format("thulawa").option("subscribe", "orders")
    assert reader.option("buckets", TWO.text).load(log.address).count() == 2
    with pytest.raises(Exception, match="another layout of buckets"):
        reader.option("buckets", other.text).load(log.address).collect()
    assert len(log.consumer("orders", buckets=TWO).poll()) == 2


def test_rows_made_ready_in_a_frame_go_where_the_sink_would_put_them(
    spark: SparkSession, log: Log
) -> None:
    keys = [f"{'Platinum' if n % 2 else 'Gold'}-{n}" for n in range(40)]
    ready = orders(spark, *keys, "Silver-1").transform(thulawa.priority.in_buckets(DROP, 6))
    ready.write.format("thulawa").option("topic", "orders").mode("append").save(log.address)
    assert stamps(log) == {DROP.fingerprint.encode()}
    assert sum(ends(log)) == 40
    for partition in log.end_offsets("orders"):
        for record in log.read("orders", partition, 0):
            assert partition == DROP.partition(record.key, 6)


def test_each_bucket_has_a_query_of_its_own_with_its_partitions_and_cores(
    spark: SparkSession, log: Log
) -> None:
    with log.producer(buckets=TWO) as producer:
        for n in range(60):
            producer.send("orders", key=b"%s-%d" % (b"Gold" if n % 3 else b"Platinum", n))
    queries = TWO.assign(6, cores=3)
    assert {name: share.cores for name, share in queries.items()} == {"Platinum": 2, "Gold": 1}
    for name, part in queries.items():
        reader = spark.read.format("thulawa").options(**part.options("orders"))
        rows = reader.load(log.address)
        assert {TWO.bucket(bytes(row.key)) for row in rows.collect()} == {name}
        assert rows.count() == (20 if name == "Platinum" else 40)
        assert rows.rdd.getNumPartitions() == part.cores


def test_the_query_of_a_bucket_refuses_records_of_another_layout(
    spark: SparkSession, log: Log
) -> None:
    with log.producer(buckets=TWO) as producer:
        producer.send("orders", key=b"Platinum-3")
    even = Buckets({"Platinum": 50, "Gold": 50}).assign(6, cores=2)
    for part in even.values():
        reader = spark.read.format("thulawa").options(**part.options("orders"))
        if TWO.partition("Platinum-3", 6) in part.partitions:
            with pytest.raises(Exception, match="another layout of buckets"):
                reader.load(log.address).collect()


def test_rows_copied_with_their_headers_are_stamped_by_where_they_go(
    spark: SparkSession, log: Log
) -> None:
    log.create_topic("others", partitions=6)
    log.create_topic("plain", partitions=6)
    with log.producer(buckets=TWO) as producer:
        for n in range(20):
            producer.send("orders", key=b"Gold-%d" % n, headers={"n": b"%d" % n})
    other = Buckets({"Platinum": 30, "Gold": 70})
    rows = spark.read.format("thulawa").option("subscribe", "orders").load(log.address)
    rows = rows.select("key", "value", "headers")
    for topic, some in {
        "others": rows,
        "others ": rows.transform(thulawa.priority.in_buckets(other, 6)),
        "plain": rows,
    }.items():
        writer = some.write.format("thulawa").mode("append").option("topic", topic.strip())
        if topic == "others":
            writer = writer.option("buckets", other.text)
        writer.save(log.address)
    found = {
        topic: [
            [value for name, value in record.headers if name == STAMP]
            for partition in log.end_offsets(topic)
            for record in log.read(topic, partition, 0)
            if dict(record.headers)["n"]
        ]
        for topic in ("others", "plain")
    }
    assert found == {"others": [[other.fingerprint.encode()]] * 40, "plain": [[]] * 20}


def test_rows_without_a_key_take_turns_in_a_frame_as_in_the_sink(spark: SparkSession) -> None:
    rows = orders(spark, *[None] * 12, "Gold-1").coalesce(1)
    spread = Buckets({"Platinum": 70, "Gold": 30}, unknown="spread")
    placed = rows.transform(thulawa.priority.in_buckets(spread, 6)).where("key is null").collect()
    assert sorted(row.partition for row in placed) == sorted([*range(6)] * 2)


def reader_of(log: Log, **options: Any) -> LogReader:
    return LogReader.of({"path": log.address, "subscribe": "orders", **options})


def taken_by_bucket(log: Log, most: int, **options: Any) -> dict[str, int]:
    reader = reader_of(log, buckets=TWO.text, **options)
    start, end = reader.starts(), reader.look().ends
    upto = share(start, end, most, reader.split())
    return {
        name: sum(upto[TopicPartition("orders", number)] for number in numbers)
        for name, numbers in TWO.layout(6).items()
    }


def flood(log: Log, platinum: int, gold: int) -> None:
    layout = TWO.layout(6)
    for name, count in (("Platinum", platinum), ("Gold", gold)):
        records = [
            ProducerRecord(partition=layout[name][n % len(layout[name])]) for n in range(count)
        ]
        log.append({"orders": records})


@pytest.mark.parametrize(
    ("platinum", "gold", "order", "expected"),
    [
        (1_000, 9_000, "weighted", {"Platinum": 70, "Gold": 30}),
        (10, 9_000, "weighted", {"Platinum": 10, "Gold": 90}),
        (1_000, 5, "weighted", {"Platinum": 95, "Gold": 5}),
        (1_000, 9_000, "strict", {"Platinum": 100, "Gold": 0}),
        (60, 9_000, "strict", {"Platinum": 60, "Gold": 40}),
    ],
)
def test_a_trigger_takes_of_each_bucket_what_the_order_says(
    log: Log, platinum: int, gold: int, order: str, expected: dict[str, int]
) -> None:
    flood(log, platinum, gold)
    assert taken_by_bucket(log, 100, bucketOrder=order) == expected


def test_without_buckets_a_trigger_takes_the_same_of_each_partition(log: Log) -> None:
    flood(log, 1_000, 9_000)
    reader = reader_of(log)
    upto = share(reader.starts(), reader.look().ends, 60, reader.split())
    assert [*upto.values()] == [10] * 6


def test_one_query_over_all_buckets_takes_them_by_weight_and_says_what_waits(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    flood(log, 200, 400)
    log.create_topic("out")
    source = spark.readStream.format("thulawa").option("subscribe", "orders")
    source = source.option("buckets", TWO.text).option("maxOffsetsPerTrigger", 100)
    rows = source.load(log.address).select("key", "value")
    query = (
        log_sink(rows, log.address, topic="out").queryName("by weight")
        .option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    seen = [
        thulawa.priority.bucket_progress(one, TWO, {"orders": 6}) for one in query.recentProgress
    ]
    taken = [(one["Platinum"].taken, one["Gold"].taken) for one in seen]
    assert taken == [(70, 30), (70, 30), (60, 40), (0, 100), (0, 100), (0, 100)]
    waiting = [(one["Platinum"].waiting, one["Gold"].waiting) for one in seen]
    assert waiting[:3] == [(130, 370), (60, 340), (0, 300)]
    assert waiting[-1] == (0, 0)


def test_progress_tells_how_long_the_records_of_each_bucket_take(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    ago = [10, 20, 300]  # seconds; those of Gold as many minutes
    now = int(time.time() * 1_000)
    log.append({"orders": [
        *(ProducerRecord(b"Platinum-1", b"v", partition=0, timestamp=now - 1_000 * n) for n in ago),
        *(ProducerRecord(b"Gold-1", b"v", partition=4, timestamp=now - 60_000 * n) for n in ago),
    ]})  # fmt: skip
    three = Buckets({"Platinum": 50, "Gold": 30, "Tin": 20})
    source = spark.readStream.format("thulawa").option("subscribe", "orders").load(log.address)
    watched = source.transform(thulawa.priority.watch_buckets(three, {"orders": 6}))
    query = (
        watched.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    seen = thulawa.priority.bucket_progress(query.lastProgress, three, {"orders": 6})
    took = time.time() - now / 1_000
    for name, unit in (("Platinum", 1), ("Gold", 60)):
        latency, oldest = seen[name].latency, seen[name].oldest
        assert latency is not None
        assert oldest is not None
        assert latency.count == 3
        assert 20 * unit <= latency.p50 <= 20 * unit + took
        assert 300 * unit <= oldest <= latency.p99 <= latency.maximum <= 300 * unit + took
    assert (seen["Tin"].taken, seen["Tin"].latency, seen["Tin"].oldest) == (0, None, None)


def progress(start: object, end: dict[str, int], rows: int) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": {"orders": end}, "latestOffset": {"orders": end}}
    return {"sources": [source | {"numInputRows": rows}]}


def test_progress_tells_what_a_trigger_took_or_that_it_is_not_known() -> None:
    ends = {"0": 487, "4": 493}
    begun = {"orders": {"0": 480, "4": 490}}

    def taken(start: object, rows: int) -> list[int | None]:
        found = thulawa.priority.bucket_progress(progress(start, ends, rows), TWO, {"orders": 6})
        return [found[name].taken for name in ("Platinum", "Gold")]

    assert taken(begun, 10) == [7, 3]
    assert taken(None, 980) == [487, 493]
    assert taken(None, 10) == [None, None]


def test_progress_of_a_topic_that_has_grown_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has a partition 6"):
        thulawa.priority.bucket_progress(progress(None, {"6": 1}, 1), TWO, {"orders": 6})


@pytest.mark.parametrize("name", ["bucket", "Buckets ", "partitioner"])
def test_an_option_that_no_sink_or_source_has_is_refused(name: str) -> None:
    schema = StructType([StructField("value", StringType())])
    broker = {"kafka.bootstrap.servers": "localhost:1"}
    for make in (
        lambda: LogWriter.of({"path": "file:./x", "topic": "orders", name: "x"}, schema),
        lambda: LogReader.of({"path": "file:./x", "subscribe": "orders", name: "x"}),
        lambda: KafkaFormat({**broker, "subscribe": "orders", name: "x"}).streamReader(schema),
        lambda: KafkaFormat(
            {**broker, "application": "a", "topic": "orders", name: "x"}
        ).streamWriter(schema, overwrite=False),
    ):
        with pytest.raises(ConfigurationError, match="has no options"):
            make()


def unfit(**options: str) -> Callable[[], Any]:
    return lambda: LogReader.of({"path": "file:./x", **options})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unfit(subscribe="a", bucketOrder="strict"), "goes with"),
        (unfit(subscribe="a", buckets=TWO.text, bucketOrder="fair"), "one of weighted, strict"),
        (unfit(subscribe="a", buckets="{}"), "describes no buckets"),
        (unfit(subscribe="a", assign='{"a": [0]}'), "or partitions"),
        (unfit(assign="[0]"), "no assignment"),
        (lambda: Buckets({"a": 100}, bucket_of=lambda key: "a").text, "in_buckets"),
        (lambda: TWO.assign(6, 1), "too few"),
    ],
    ids=range(7),
)
def test_options_that_cannot_work_are_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make()


def test_a_partition_that_is_not_there_is_refused(log: Log) -> None:
    reader = LogReader.of({"path": log.address, "assign": '{"orders": [6]}'})
    with pytest.raises(ConfigurationError, match="no partition 6"):
        LogStreamReader(reader, None).initialOffset()


def test_rows_of_another_layout_are_refused_in_a_frame(spark: SparkSession, log: Log) -> None:
    with log.producer(buckets=TWO) as producer:
        producer.send("orders", key=b"Gold-1")
        producer.send("orders", key=b"Gold-2", partition=0, headers={"n": b"1"})
        producer.send("orders", key=b"Gold-3", partition=0)
    rows = spark.read.format("thulawa").option("subscribe", "orders").load(log.address)
    assert rows.transform(thulawa.priority.check_buckets(TWO)).count() == 3
    other = Buckets({"Platinum": 60, "Gold": 40})
    with pytest.raises(Exception, match="another layout of buckets"):
        rows.transform(thulawa.priority.check_buckets(other)).collect()


def test_a_report_tells_what_the_lanes_have_come_to(spark: SparkSession) -> None:
    async def slow(row: Any) -> str:
        # Gold's calls take longer than the pause between two looks at the lanes.
        await asyncio.sleep(0.02 if row.key.startswith("Platinum") else 0.5)
        return "done"

    report = thulawa.priority.LaneReport(spark)
    rows = orders(spark, *(f"{'Gold' if n % 3 else 'Platinum'}-{n}" for n in range(90)))
    done = rows.coalesce(1).transform(
        thulawa.map_by_key(
            slow,
            key="key",
            returns="said string",
            in_flight=20,
            lanes=thulawa.engine.Lanes.of(TWO, strict=True),
            lane=lambda row: TWO.lane(row.key),
            report=report,
        )
    )
    assert report.lanes() == {}
    assert done.count() == 90
    figures = report.lanes()
    assert (figures["Platinum"].done, figures["Gold"].done) == (30, 60)
    assert 1 <= figures["Gold"].in_flight <= 20
    assert figures["Gold"].residence.p99 >= figures["Platinum"].residence.p50 >= 0.02
