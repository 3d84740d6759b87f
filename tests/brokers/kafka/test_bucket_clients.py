"""Buckets over Kafka: placed by sinks and producers, shared by consumers that come and go."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession

import thulawa
from tests.brokers.kafka.helpers import read
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import headers_of
from thulawa.brokers.kafka.routing import OutRecord, Policies
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import SinkBatch, SinkSpec, write
from thulawa.errors import ConfigurationError
from thulawa.priority.buckets import STAMP, Buckets
from thulawa.priority.kafka_clients import BucketConsumer, BucketProducer, check_layout
from thulawa.spark.connectors.kafka_sink import FORMAT, connection_options, kafka_sink, register
from thulawa.spark.connectors.kafka_source import kafka_source

TWO = Buckets({"Platinum": 70, "Gold": 30}, unknown="drop")
OTHER = Buckets({"Platinum": 60, "Gold": 40}, unknown="drop")


def orders(
    connection: Connection, topic: str, count: int, buckets: Buckets = TWO
) -> BucketProducer:
    producer = BucketProducer(Producer(connection.client()), buckets, connection, refresh=1)
    for n in range(count):
        assert producer.produce(topic, b"%d" % n, f"{'Gold' if n % 2 else 'Platinum'}-{n}")
    assert producer.flush(30) == 0
    return producer


def placed(connection: Connection, topic: str, partitions: int) -> bool:
    return all(
        message.partition() == TWO.partition(message.key(), partitions)
        and dict(headers_of(message))[STAMP] == TWO.fingerprint.encode()
        for message in read(connection, topic)
    )


def test_a_plain_producer_places_stamps_drops_and_follows_when_partitions_are_added(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    producer = orders(connection, name, 40)
    assert not producer.produce(name, b"", "Silver-1")
    assert producer.dropped == 1
    assert len(producer) == 0
    assert placed(connection, name, 6)
    assert producer.produce(name, b"", "Gold-1", 0)  # where it says, as any producer does
    assert producer.produce(name, b"", "Gold-1", partition=1)
    assert producer.flush(30) == 0
    there = [message for message in read(connection, name) if not headers_of(message)]
    assert sorted(message.partition() or 0 for message in there) == [0, 1]
    before = {message.offset() for message in read(connection, name) if message.partition() == 5}
    topics.ensure_partitions(name, 12)
    time.sleep(1)
    for n in range(40):
        producer.produce(name, b"", f"Gold-{n}", headers={"more": b"x"})
    assert producer.flush(30) == 0
    after = [m for m in read(connection, name) if dict(headers_of(m)).get("more")]
    assert before
    assert {message.partition() for message in after} == {8, 9, 10, 11}


def test_a_sink_places_what_has_no_partition_and_a_writer_of_another_layout_is_refused(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    topics.ensure(f"{name}-dead")
    keys = [b"Platinum-1", b"Gold-1", b"Silver-1"]
    records = [OutRecord(name, key, b"", -1, None, None) for key in keys]
    records.append(OutRecord(f"{name}-none", b"Silver-1", b"", -1, None, None))
    policies = Policies(missing="dead_letter", dead_letter=f"{name}-dead")
    spec = SinkSpec(connection=connection, application=name, policies=policies, buckets=TWO)
    written = write(spec, SinkBatch("q", 0, 0), [records])
    assert (written.records, written.dead_letters, written.dropped) == (3, 1, 1)
    assert placed(connection, name, 6)
    assert len(read(connection, name)) == 2
    for another in ({"buckets": OTHER}, {"buckets": OTHER, "policies": policies}):
        otherwise = SinkSpec(connection=connection, application=f"{name}-2", **another)
        with pytest.raises(ConfigurationError, match="another layout of buckets"):
            write(
                otherwise, SinkBatch("q", 0, 0), [[OutRecord(name, keys[1], b"", -1, None, None)]]
            )
    assert len(read(connection, name)) == 2
    check_layout(connection, name, TWO)
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        check_layout(connection, name, OTHER)
    with pytest.raises(ConfigurationError, match="another layout of buckets"):
        orders(connection, name, 1, OTHER)


@contextmanager
def members(
    connection: Connection, topic: str, *buckets: str, of: Buckets = TWO
) -> Iterator[list[BucketConsumer]]:
    made = [
        BucketConsumer(
            connection, topic, group=f"{topic}-group", buckets=of, bucket=bucket,
            settings={"topic.metadata.refresh.interval.ms": 500, "session.timeout.ms": 6_000},
        )
        for bucket in buckets
    ]  # fmt: skip
    try:
        yield made
    finally:
        for one in made:
            one.close()


def settled(
    consumers: list[BucketConsumer],
    wanted: Callable[[list[list[int]]], bool],
    *,
    patient: bool = False,
) -> None:
    """Poll until the assignments are as wanted; a patient one goes on after errors."""
    deadline = time.monotonic() + 90
    while True:
        for consumer in consumers:
            with suppress(*([ConfigurationError] if patient else [])):
                consumer.poll(0.05)
        found = [sorted(p.partition for p in one.assignment()) for one in consumers]
        if wanted(found):
            return
        assert time.monotonic() < deadline, found


def test_members_share_their_bucket_leave_one_idle_and_take_over_a_bucket_without_any(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    orders(connection, name, 6)
    with members(connection, name, *["Platinum"] * 5) as platinum:
        with members(connection, name, "Gold") as gold:
            settled(
                [*platinum, *gold],
                lambda found: (
                    sorted(found) == [[], [0], [1], [2], [3], [4, 5]] and found[5] == [4, 5]
                ),
            )
        settled(
            platinum,
            lambda found: (
                sorted(chain.from_iterable(found)) == [*range(6)] and max(map(len, found)) == 2
            ),
        )
        topics.ensure_partitions(name, 12)
        settled(
            platinum,
            lambda found: (
                sorted(chain.from_iterable(found)) == [*range(12)] and min(map(len, found)) > 0
            ),
        )


def polled(*polls: Callable[[], object]) -> None:
    """Poll in turn for a minute, unless one raises."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for poll in polls:
            poll()


@pytest.mark.parametrize("most", [None, 10])
def test_a_consumer_of_another_layout_reads_nothing_and_loses_nothing(
    connection: Connection, topics: Topics, name: str, most: int | None
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    plain = Producer(connection.client())
    plain.produce(name, b"unstamped", partition=4)
    plain.flush(30)
    orders(connection, name, 12)

    def taken(consumer: BucketConsumer) -> list[bytes]:
        if most is None:
            message = consumer.poll(1)
            return [] if message is None else [message.value() or b""]
        return [message.value() or b"" for message in consumer.consume(most, 1)]

    read: list[bytes] = []
    with members(connection, name, "Gold", of=OTHER) as (consumer,):
        for _ in range(2):  # it is refused however often it is asked for
            with pytest.raises(ConfigurationError, match="another layout of buckets"):
                polled(lambda: read.extend(taken(consumer)))
    assert read in ([], [b"unstamped"])
    accepting = replace(OTHER, accepts=(TWO.fingerprint,))
    with members(connection, name, "Gold", of=accepting) as (consumer,):
        deadline = time.monotonic() + 60
        while len(read) < 13 and time.monotonic() < deadline:
            read += taken(consumer)
    assert sorted(read) == sorted([b"unstamped", *(b"%d" % n for n in range(12))])


def test_a_group_with_a_member_that_knows_no_buckets_is_read_by_nobody_until_it_has_left(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    orders(connection, name, 6)
    stranger = Consumer(
        {**connection.client(), "group.id": f"{name}-group", "session.timeout.ms": 6_000}
    )
    stranger.subscribe([name])
    with members(connection, name, "Gold") as (consumer,):
        with pytest.raises(ConfigurationError, match="knows nothing of buckets"):
            polled(lambda: stranger.poll(0.1), lambda: consumer.poll(0.1))
        assert consumer.assignment() == []
        with pytest.raises(ConfigurationError, match="knows nothing of buckets"):
            polled(lambda: consumer.poll(0.1))
        assert consumer.assignment() == []
        stranger.close()
        settled([consumer], lambda found: found == [[*range(6)]], patient=True)


def test_members_must_have_the_same_layout_even_where_records_of_another_are_accepted(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    accepting = replace(OTHER, accepts=(TWO.fingerprint,))
    both = replace(TWO, accepts=(OTHER.fingerprint,))
    with (
        members(connection, name, "Platinum", of=both) as (one,),
        members(connection, name, "Gold", of=accepting) as (other,),
        pytest.raises(ConfigurationError, match="another layout"),
    ):
        polled(lambda: one.poll(0.1), lambda: other.poll(0.1))


def test_settings_and_buckets_that_cannot_be_are_refused(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match="no bucket 'Silver'"):
        BucketConsumer(connection, "t", group="g", buckets=TWO, bucket="Silver")
    with pytest.raises(ConfigurationError, match=r"client\.id"):
        BucketConsumer(
            connection, "t", group="g", buckets=TWO, bucket="Gold", settings={"client.id": "x"}
        )


@pytest.mark.parametrize(
    ("order", "expected"),
    [("weighted", [(14, 6), (14, 6), (12, 8), (0, 20)]), ("strict", [(20, 0), (20, 0), (0, 20)])],
)
def test_one_query_over_all_buckets_of_kafka_takes_them_as_the_order_says(
    spark: SparkSession,
    connection: Connection,
    topics: Topics,
    name: str,
    tmp_path: Path,
    order: str,
    expected: list[tuple[int, int]],
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    topics.ensure(f"{name}-out")
    orders(connection, name, 80)
    register(spark)
    source = spark.readStream.format(FORMAT).options(**connection_options(connection))
    source = source.option("subscribe", name).option("buckets", TWO.text)
    rows = source.option("bucketOrder", order).option("maxOffsetsPerTrigger", 20).load()
    sink = SinkSpec(connection=connection, application=name)
    writer = kafka_sink(rows.select("key", "value", "headers"), sink, topic=f"{name}-out")
    query = (
        writer.queryName(f"{name}-{order}")
        .option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    seen = [thulawa.priority.bucket_progress(one, TWO, {name: 6}) for one in query.recentProgress]
    taken = [(one["Platinum"].taken, one["Gold"].taken) for one in seen]
    assert taken[: len(expected)] == expected
    copied = sorted(int(message.value() or b"") for message in read(connection, f"{name}-out"))
    assert copied == [*range(80)]


def test_a_query_of_one_bucket_reads_its_partitions_with_its_cores_through_spark_s_source(
    spark: SparkSession, connection: Connection, topics: Topics, name: str, tmp_path: Path
) -> None:
    topics.ensure(name, TopicSpec(partitions=6))
    orders(connection, name, 40)
    gold = TWO.assign(6, cores=2)["Gold"]
    source = kafka_source(spark, connection, {name: gold.partitions}).coalesce(gold.cores)
    rows = source.transform(thulawa.priority.check_buckets(TWO))
    rows.transform(thulawa.map_by_key(len, key="key", returns="length int"))  # is not refused
    writer = rows.writeStream.format("memory").queryName(f"gold_{name}")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    query.start().awaitTermination()
    found = spark.table(f"gold_{name}").select("key", "partition").collect()
    assert len(found) == 20
    assert {TWO.bucket(bytes(row.key)) for row in found} == {"Gold"}
    assert {row.partition for row in found} == {4, 5}
