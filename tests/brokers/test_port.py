"""The contract of `Broker`: every test runs on the embedded log and on Kafka."""

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.port import Broker, StreamConsumer, WriterId, open_broker, read_to_end
from thulawa.core.markers import LastBatch
from thulawa.core.types import ProducerRecord, TopicPartition
from thulawa.errors import (
    ConfigurationError,
    Fenced,
    OffsetOutOfRange,
    OlderBatch,
    RecordTooLarge,
    TopicDiffers,
    UnknownTopic,
)


@pytest.fixture(params=["embedded", "kafka"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "embedded":
        opened = open_broker(f"file:{tmp_path / 'topics'}")
    else:
        connection: Connection = request.getfixturevalue("connection")
        opened = open_broker(connection)
    yield opened
    opened.close()


@pytest.fixture
def topic(port: Broker, name: str) -> str:
    port.create_topic(name, 2)
    return name


@pytest.fixture
def writer(name: str) -> WriterId:
    return WriterId(application=f"app-{name}", query="q")


def values(port: Broker, topic: str) -> list[bytes]:
    """Return the values of a topic, sorted; wait for transactions that are being committed."""
    return sorted(record.value or b"" for record in read_to_end(port, topic, committed=False))


def write(port: Broker, writer: WriterId, number: int, topic: str, *values: bytes) -> bool:
    """Write values in one transaction; return whether they had been written before."""
    with port.transaction(writer, 0, LastBatch(number)) as transaction:
        transaction.write(topic, [ProducerRecord(b"k", value) for value in values])
    return transaction.skipped


# Topics.


def test_a_topic_is_described_as_it_was_created(port: Broker, name: str) -> None:
    port.create_topic(name, 3, compact=True)
    found = port.describe(name)
    assert (found.name, found.partitions, found.compact) == (name, 3, True)
    assert found.max_record_bytes >= 2**24, "compacted topics hold state of any size"
    assert name in port.topics()
    assert port.partitions(name, f"{name}-none") == {name: 3}


def test_creating_a_topic_twice_changes_nothing_unless_the_settings_differ(
    port: Broker, topic: str
) -> None:
    before = port.describe(topic)
    port.create_topic(topic, 2)
    assert port.describe(topic) == before
    with pytest.raises(TopicDiffers, match=topic):
        port.create_topic(topic, 3)
    with pytest.raises(TopicDiffers, match=topic):
        port.create_topic(topic, 2, compact=True)


def test_a_topic_that_is_created_again_has_another_id(port: Broker, topic: str) -> None:
    before = port.describe(topic).id
    port.delete_topic(topic)
    assert port.partitions(topic) == {}
    port.create_topic(topic)
    assert port.describe(topic).id != before


def test_a_missing_topic_is_unknown_everywhere(port: Broker, topic: str, writer: WriterId) -> None:
    missing = f"{topic}-none"
    for ask in (port.describe, port.delete_topic, port.start_offsets, port.end_offsets):
        with pytest.raises(UnknownTopic, match=missing):
            ask(missing)
    with pytest.raises(UnknownTopic, match=missing):
        port.append(missing, [ProducerRecord(b"k", b"v")])
    with (  # noqa: PT012 the commit may be what raises
        pytest.raises(UnknownTopic, match=missing),
        port.transaction(writer, 0, LastBatch(0)) as transaction,
    ):
        transaction.write(topic, [ProducerRecord(b"k", b"v")])
        transaction.write(missing, [ProducerRecord(b"k", b"v")])
    assert values(port, topic) == []
    assert port.markers(writer) == {}


def test_the_size_of_a_topic_counts_its_records(port: Broker, topic: str) -> None:
    assert port.size(topic).records == 0
    port.append(topic, [ProducerRecord(b"k", b"v")] * 3)
    assert port.size(topic).records == 3


def test_a_topic_may_be_created_with_a_retention(port: Broker, name: str) -> None:
    port.create_topic(name, retention=3_600.0)
    port.append(name, [ProducerRecord(b"k", b"v")])
    assert values(port, name) == [b"v"]
    port.create_topic(name)  # exists


# Groups that divide partitions.


def test_members_of_a_group_divide_the_partitions(port: Broker, topic: str, name: str) -> None:
    everything = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    members = [port.join_group(f"{name}-group", [topic]) for _ in range(2)]
    deadline = time.monotonic() + 60
    while [len(member.assigned()) for member in members] != [1, 1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert members[0].joined
    assert members[0].assigned() | members[1].assigned() == everything
    members.pop().close()
    while members[0].assigned() != everything:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    members.pop().close()


# Reading.


def test_records_are_read_as_they_were_written(port: Broker, topic: str) -> None:
    headers = (("n", b"1"), ("n", None))
    port.append(
        topic,
        [
            ProducerRecord(b"k", b"v", headers, 5_000, 1),
            ProducerRecord(None, None, (), 6_000, 1),
        ],
    )
    first, second = read_to_end(port, topic)
    assert first == (topic, 1, 0, 5_000, b"k", b"v", headers)
    assert second == (topic, 1, 1, 6_000, None, None, ())


def test_a_range_has_the_records_between_its_offsets(port: Broker, topic: str) -> None:
    port.append(topic, [ProducerRecord(b"k", b"%d" % n, (), 1_000 + n, 0) for n in range(10)])
    ranges = {TopicPartition(topic, 0): (3, 6), TopicPartition(topic, 1): (0, 0)}
    assert [record.value for record in port.read(ranges)] == [b"3", b"4", b"5"]
    (columns,) = port.read_columns(TopicPartition(topic, 0), 3, 6)
    assert columns.offsets.to_pylist() == [3, 4, 5]
    assert columns.timestamps.to_pylist() == [1_003, 1_004, 1_005]
    assert [bytes(one) for one in _listed(columns.values)] == [b"3", b"4", b"5"]
    assert [record.offset for record in read_to_end(port, topic, {0: 8})] == [8, 9]


def _listed(values: object) -> list[bytes]:
    return values if isinstance(values, list) else values.to_pylist()  # type: ignore[attr-defined]


def test_keys_go_to_the_partitions_of_kafka_s_clients(port: Broker, name: str) -> None:
    port.create_topic(name, 8)
    port.append(name, [ProducerRecord(b"foobar", b"v")])
    (record,) = read_to_end(port, name)
    assert record.partition == 6


def test_deleted_records_cannot_be_read(port: Broker, topic: str) -> None:
    port.append(topic, [ProducerRecord(b"k", b"%d" % n, partition=0) for n in range(10)])
    port.delete_records({topic: {0: 4}})
    assert port.start_offsets(topic) == {topic: {0: 4, 1: 0}}
    assert port.end_offsets(topic) == {topic: {0: 10, 1: 0}}
    with pytest.raises(OffsetOutOfRange):
        list(port.read({TopicPartition(topic, 0): (3, 10)}))
    assert values(port, topic) == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_a_record_of_the_largest_size_is_written(port: Broker, topic: str, name: str) -> None:
    value = bytes(port.max_record_size(topic) - 1)
    port.append(topic, [ProducerRecord(b"k", value)])
    assert values(port, topic) == [value]
    with pytest.raises(UnknownTopic, match=f"{name}-none"):
        port.max_record_size(f"{name}-none")


def test_a_record_that_is_too_large_is_refused(port: Broker, topic: str) -> None:
    large = bytes(port.describe(topic).max_record_bytes + 1)
    with pytest.raises(RecordTooLarge, match=topic):
        port.append(topic, [ProducerRecord(b"k", large)])
    assert values(port, topic) == []


# Consumer groups.


def test_a_group_has_the_offsets_it_committed(port: Broker, topic: str, name: str) -> None:
    port.append(topic, [ProducerRecord(b"k", b"v", partition=n % 2) for n in range(10)])
    group = f"g-{name}"
    assert port.committed(group) == ({}, None)
    port.commit(group, {topic: {0: 3, 1: 2}}, query="q", batch=7)
    assert port.committed(group, query="q") == ({topic: {0: 3, 1: 2}}, 7)
    assert port.committed(group, [topic], query="other") == ({topic: {0: 3, 1: 2}}, None)
    assert port.committed(group, []).offsets == {}
    port.delete_groups(group, f"{group}-none")
    assert port.committed(group).offsets == {}


# Transactions.


def test_a_batch_is_written_once_with_its_marker(
    port: Broker, topic: str, writer: WriterId
) -> None:
    assert not write(port, writer, 0, topic, b"1", b"2")
    assert write(port, writer, 0, topic, b"3")
    assert not write(port, writer, 5, topic, b"4")
    assert port.markers(writer) == {0: LastBatch(5)}
    assert values(port, topic) == [b"1", b"2", b"4"]
    with pytest.raises(OlderBatch):
        write(port, writer, 4, topic, b"5")
    assert values(port, topic) == [b"1", b"2", b"4"]


def test_a_marker_has_the_layout_of_its_batch(port: Broker, topic: str, writer: WriterId) -> None:
    for task in (0, 3):
        with port.transaction(writer, task, LastBatch(task, "two-tasks")) as transaction:
            transaction.write(topic, [])
    assert port.markers(writer) == {0: LastBatch(0, "two-tasks"), 3: LastBatch(3, "two-tasks")}
    port.delete_writer(writer)
    assert port.markers(writer) == {}


def test_a_block_that_raises_writes_nothing(port: Broker, topic: str, writer: WriterId) -> None:
    write(port, writer, 0, topic, b"before")
    with (  # noqa: PT012 it is raised inside
        pytest.raises(ZeroDivisionError),
        port.transaction(writer, 0, LastBatch(1)) as transaction,
    ):
        transaction.write(topic, [ProducerRecord(b"k", b"aborted")])
        raise ZeroDivisionError
    assert values(port, topic) == [b"before"]
    assert port.markers(writer) == {0: LastBatch(0)}
    write(port, writer, 1, topic, b"after")
    assert values(port, topic) == [b"after", b"before"]


def test_a_later_transaction_fences_the_open_one(
    port: Broker, topic: str, writer: WriterId
) -> None:
    with (  # noqa: PT012 the commit raises
        pytest.raises(Fenced),
        port.transaction(writer, 0, LastBatch(1)) as zombie,
    ):
        zombie.write(topic, [ProducerRecord(b"k", b"of the zombie")])
        assert not write(port, writer, 0, topic, b"of its successor")
    assert values(port, topic) == [b"of its successor"]
    assert port.markers(writer) == {0: LastBatch(0)}


def test_fence_ends_the_open_transactions_of_tasks(
    port: Broker, topic: str, writer: WriterId
) -> None:
    write(port, writer, 0, topic, b"before")
    with (  # noqa: PT012 the commit raises
        pytest.raises(Fenced),
        port.transaction(writer, 0, LastBatch(1)) as zombie,
    ):
        zombie.write(topic, [ProducerRecord(b"k", b"of the zombie")])
        port.fence(writer)
    assert values(port, topic) == [b"before"]


def test_an_oversized_record_aborts_its_transaction(
    port: Broker, topic: str, writer: WriterId
) -> None:
    large = bytes(port.describe(topic).max_record_bytes + 1)
    with pytest.raises(RecordTooLarge, match=topic):
        write(port, writer, 0, topic, b"small", large)
    assert values(port, topic) == []
    assert not write(port, writer, 0, topic, b"small")
    assert values(port, topic) == [b"small"]


@pytest.mark.timeout(120)
def test_nothing_of_a_killed_writer_is_read_and_its_successor_goes_on(
    port: Broker, topic: str, writer: WriterId
) -> None:
    command = [sys.executable, "-m", "tests.brokers.killed_writer"]
    with subprocess.Popen(
        [*command, port.address, topic, writer.application], stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"written\n"
        killed.send_signal(signal.SIGKILL)
    port.fence(writer, [0])
    assert port.markers(writer) == {}
    assert not write(port, writer, 0, topic, b"of its successor")
    assert values(port, topic) == [b"of its successor"]
    assert port.markers(writer) == {0: LastBatch(0)}


# Continuous reading and writing.


def poll_all(consumer: StreamConsumer, count: int) -> list[tuple[int, bytes | None]]:
    """Poll until ``count`` records have come and no partition has more."""
    found: list[tuple[int, bytes | None]] = []
    for _ in range(300):
        for polled in consumer.poll(100, 0.1):
            found += [(polled.partition.partition, value) for value in polled.values]
        if len(found) >= count:
            break
    return found


def test_a_stream_consumer_reads_from_its_positions_and_reports_the_end(
    port: Broker, topic: str
) -> None:
    records = [ProducerRecord(b"k", b"%d" % number, partition=0) for number in range(5)]
    port.append(topic, records)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = port.stream_consumer({first: 2, second: 0})
    ends: dict[TopicPartition, int] = {}
    values: list[bytes | None] = []
    for _ in range(300):
        for polled in consumer.poll(100, 0.1):
            values += polled.values
            if polled.at_end:
                ends[polled.partition] = polled.next_offset
        if len(ends) == 2:
            break
    consumer.close()
    assert values == [b"2", b"3", b"4"]
    assert ends == {first: 5, second: 0}


def test_a_paused_partition_is_not_read_until_it_is_resumed(port: Broker, topic: str) -> None:
    both = {TopicPartition(topic, number): 0 for number in range(2)}
    consumer = port.stream_consumer(both)
    consumer.pause([TopicPartition(topic, 0)])
    port.append(topic, [ProducerRecord(b"k", b"v", partition=number) for number in range(2)])
    assert poll_all(consumer, 1) == [(1, b"v")]
    consumer.resume([TopicPartition(topic, 0)])
    assert poll_all(consumer, 1) == [(0, b"v")]
    consumer.close()


def test_records_and_offsets_of_a_stream_producer_become_visible_together(
    port: Broker, topic: str, name: str
) -> None:
    producer = port.stream_producer(f"{name}-host-0")
    producer.send(topic, 1, b"k", b"first", 1_000, (("h", b"1"),))
    producer.dispatch()
    assert port.end_offsets(topic)[topic][1] == 0
    producer.commit(name, {})
    producer.send(topic, 1, b"k", b"second", 2_000)
    producer.close()  # what is not committed is aborted
    assert values(port, topic) == [b"first"]
    (record,) = read_to_end(port, topic)
    assert (record.partition, record.timestamp, record.headers) == (1, 1_000, (("h", b"1"),))


def test_a_stream_producer_commits_the_offsets_of_its_group(
    port: Broker, topic: str, name: str
) -> None:
    port.append(topic, [ProducerRecord(b"k", b"v", partition=0)])
    for transactional_id in (f"{name}-host-0", None):
        producer = port.stream_producer(transactional_id)
        producer.send(topic, 1, b"k", b"out", 1_000)
        producer.commit(f"{name}-group", {topic: {0: 1}})
        producer.close()
        assert port.committed(f"{name}-group").offsets == {topic: {0: 1}}
    assert values(port, topic) == [b"out", b"out", b"v"]


def test_a_stream_producer_fences_the_one_before_it(port: Broker, topic: str, name: str) -> None:
    old = port.stream_producer(f"{name}-host-0")
    old.send(topic, 0, b"k", b"zombie", 1_000)
    new = port.stream_producer(f"{name}-host-0")
    new.send(topic, 0, b"k", b"new", 1_000)
    new.commit(name, {})
    with pytest.raises(Fenced):
        old.commit(name, {})
    old.close()
    new.close()
    assert values(port, topic) == [b"new"]


def test_a_stream_producer_without_transactions_sends_at_once(port: Broker, topic: str) -> None:
    producer = port.stream_producer(None)
    producer.send(topic, 0, b"k", b"now", 1_000)
    producer.dispatch()
    for _ in range(100):
        if port.end_offsets(topic)[topic][0]:
            break
        time.sleep(0.05)
    assert values(port, topic) == [b"now"]
    producer.close()


def test_a_broker_can_be_pickled(port: Broker, topic: str) -> None:
    port.check()
    copy = pickle.loads(pickle.dumps(port))  # noqa: S301 made here
    assert copy.address == port.address
    assert copy.partitions(topic) == {topic: 2}
    copy.close()


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"dead_letters='visits' is no address"):
        open_broker("visits", option="dead_letters")
