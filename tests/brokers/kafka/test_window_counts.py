"""Windows of Kafka's topics are counted exactly, with the output topic and nothing beside it."""

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from tests.brokers.kafka.helpers import read
from tests.health import chaos
from tests.health.helpers import LINES, is_valid, story_messages, written
from tests.health.local import LocalCounts
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.groups import Membership, committed_offsets
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import close_producers
from thulawa.brokers.port import open_broker
from thulawa.core.types import TopicPartition
from thulawa.dev.kafka_broker import DevBroker
from thulawa.errors import (
    TopicDiffers,
    UnknownTopic,
)
from thulawa.health import WindowCounts
from thulawa.health.changelog import CountsChangelog, restore
from thulawa.health.counts import Cell, Count, decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = 86_400_000


def total(topic: str, value: int, offset: int) -> list[Count]:
    return [Count(Cell(topic, 0, 0, "valid"), value, offset)]


@pytest.fixture
def changelog(connection: Connection, topics: Topics, name: str) -> CountsChangelog:
    topics.ensure(name, TopicSpec(partitions=2))
    made = CountsChangelog(open_broker(connection), f"{name}-metrics", f"{name}-app")
    made.prepare([name])
    return made


def test_a_topic_that_was_made_again_is_known_by_its_id(
    topics: Topics, changelog: CountsChangelog, name: str
) -> None:
    place = TopicPartition(name, 0)
    before = changelog.identity(name)
    assert before is not None
    changelog.claim([place])
    assert written(changelog, place, total(name, 3, 5), 1_000)
    (restored,) = restore(changelog, [place], DAY).values()
    assert restored.identity == before == changelog.identity(name)
    topics.delete_topic(name)
    deadline = time.monotonic() + 30
    while topics.partitions(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    topics.ensure(name, TopicSpec(partitions=2))
    assert changelog.identity(name) != before


def test_who_is_behind_does_not_get_through(
    connection: Connection, changelog: CountsChangelog, name: str
) -> None:
    place = TopicPartition(name, 0)
    changelog.claim([place])
    assert written(changelog, place, total(name, 3, 5), 1_000)
    assert not written(changelog, place, total(name, 2, 4), 1_001)
    close_producers()  # another process: it knows nothing but what is in Kafka
    assert not written(changelog, place, total(name, 3, 5), 1_002)
    assert written(changelog, place, total(name, 4, 6), 1_003)
    (restored,) = restore(changelog, [place], DAY).values()
    assert restored.totals.counts() == total(name, 4, 6)
    assert restored.totals.position == 6
    # Kafka's own tools show how far counting is
    assert committed_offsets(connection, f"{name}-app/{name}-metrics/{name}-counts") == {
        name: {0: 6}
    }


def test_names_that_hold_a_hyphen_are_not_mistaken_for_others(
    connection: Connection, topics: Topics, name: str
) -> None:
    # joined by hyphens, application, output and topic would be the same
    a, b, c = f"{name}a", f"{name}b", f"{name}c"
    jobs = [(f"{name}-{a}", b, c), (name, f"{a}-{b}", c), (name, a, f"{b}-{c}")]
    for application, output, topic in jobs:
        topics.ensure(topic)
        changelog = CountsChangelog(open_broker(connection), output, application)
        changelog.prepare([topic])
        assert changelog.claim([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
        assert written(changelog, TopicPartition(topic, 0), total(topic, 3, 5))


def test_who_takes_a_partition_over_shuts_the_one_before_out(
    connection: Connection, changelog: CountsChangelog, name: str
) -> None:
    place = TopicPartition(name, 0)
    producer = Producer(
        {
            **connection.client(),
            "transactional.id": f"{name}-app/{name}-metrics/{name}-counts-0",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{name}-metrics", b"half", b"half written", 0)
    producer.flush(30)
    began = time.monotonic()
    changelog.claim([place])  # ends what was left open, so that nobody waits for it
    (restored,) = restore(changelog, [place], DAY).values()
    assert time.monotonic() - began < 14
    assert restored.totals.counts() == []


def test_sums_are_read_on_from_where_reading_ended(changelog: CountsChangelog, name: str) -> None:
    since: dict[int, int] = {}
    written(changelog, TopicPartition(name, 0), total(name, 3, 5), 1_000)
    assert len(list(changelog.read(since))) == 1
    assert list(changelog.read(since)) == []
    written(changelog, TopicPartition(name, 0), total(name, 4, 6), 1_001)
    chunk = list(changelog.read(since))
    assert decode(*chunk[0][:2]) == total(name, 4, 6)[0]


def test_members_share_partitions(connection: Connection, topics: Topics, name: str) -> None:
    topics.ensure(name, TopicSpec(partitions=2))
    broker = open_broker(connection)
    members = [broker.join_group(f"{name}-members", [name])]

    def shares(expected: list[int]) -> None:
        deadline = time.monotonic() + 60
        while [len(one.assigned()) for one in members] != expected:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    shares([2])
    members.append(broker.join_group(f"{name}-members", [name]))
    shares([1, 1])
    assert members[0].assigned() | members[1].assigned() == {(name, 0), (name, 1)}
    members.pop(0).close()
    shares([2])
    members.pop().close()


def removed(connection: Connection, topic: str, before: int) -> None:
    """Remove the messages before an offset, as retention does."""
    admin = AdminClient(connection.client())
    (answer,) = admin.delete_records([ClientPartition(topic, 0, before)]).values()
    answer.result(30)


def counting(connection: Connection, name: str, **more: Any) -> LocalCounts:
    given: dict[str, Any] = {"status": is_valid, "output": f"{name}-metrics"}
    address = f"kafka://{connection.bootstrap}"
    return LocalCounts(name, application_id=name, log=address, **(given | more))


def test_the_end_of_a_transaction_is_no_message_that_was_lost(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name)
    producer = Producer({**connection.client(), "transactional.id": name})
    producer.init_transactions(30)
    for count in (1, 2):
        producer.begin_transaction()
        producer.produce(name, b"v")
        producer.commit_transaction(30)
        health = counting(connection, name)
        assert health.count_available() == 1
        health.stop()
        # what ended the transaction had an offset, too
        removed(connection, name, 2 * count)
    assert topics.start_offsets(name) == {name: {0: 4}}
    health = counting(connection, name)
    assert health.count_available() == 0
    health.stop()


def test_who_shares_counts_what_is_there_only_once_it_has_its_share(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name, TopicSpec(partitions=2))
    producer = Producer(connection.client())
    for partition in (0, 1):
        producer.produce(name, b"v", partition=partition, timestamp=1_000)
    producer.flush(30)

    now_and_then = counting(connection, name, partitions="shared")
    assert now_and_then.count_available() == 2
    now_and_then.stop()
    with counting(connection, name, partitions="shared", output=f"{name}-b") as health:
        health.process_all_available("60 s")
        assert len(health.counts()) == 2


def test_a_member_whose_share_is_nothing_has_joined_too(
    connection: Connection, topics: Topics, name: str
) -> None:
    topics.ensure(name)
    members = [Membership(connection, f"{name}-group", [name]) for _ in range(2)]
    deadline = time.monotonic() + 60
    while not all(member.joined for member in members):
        assert time.monotonic() < deadline, "one is never told its share"
        had = [member.assigned() for member in members]
        time.sleep(0.05)
    assert had[0] | had[1] <= {(name, 0)}
    for member in members:
        member.close()


def test_jobs_of_one_application_do_not_take_each_others_partitions(
    connection: Connection, topics: Topics, name: str
) -> None:
    for topic in (name, f"{name}-more"):
        topics.ensure(topic, TopicSpec(partitions=2))
    broker = open_broker(connection)
    jobs = [("metrics", [name]), ("metrics-2", [name]), ("metrics", [f"{name}-more"])]
    members = [broker.join_group(f"{name}/{output}", wanted) for output, wanted in jobs]
    wholes = [
        {TopicPartition(topic, number) for topic in wanted for number in (0, 1)}
        for _, wanted in jobs
    ]
    deadline, settled = time.monotonic() + 60, 0
    while settled < 20:  # what one has at first may be taken away when another joins
        assert time.monotonic() < deadline, "partitions are nobody's"
        had = [member.assigned() for member in members]
        settled = settled + 1 if had == wholes else 0
        time.sleep(0.1)
    for member in members:
        member.close()


def test_topics_that_do_not_fit_are_refused(
    connection: Connection, topics: Topics, name: str
) -> None:
    with pytest.raises(UnknownTopic):
        CountsChangelog(open_broker(connection), f"{name}-metrics", name).prepare([name])
    topics.ensure(name)
    topics.ensure(f"{name}-plain")
    with pytest.raises(TopicDiffers):
        CountsChangelog(open_broker(connection), f"{name}-plain", name).prepare([name])


def test_the_story_gives_its_eleven_lines(
    spark: "SparkSession", connection: Connection, topics: Topics, name: str
) -> None:
    # its messages are of 2017: older than brokers keep them
    topics.ensure(name, TopicSpec(partitions=2, settings={"retention.ms": "-1"}))
    producer = Producer(connection.client())
    for partition, value, timestamp in story_messages():
        producer.produce(name, value, None, partition, timestamp=timestamp)
    assert producer.flush(30) == 0
    for _ in range(2):  # the second instance finds nothing left to count
        health = WindowCounts(
            name,
            status=is_valid,
            output=f"{name}-metrics",
            application_id=f"{name}-app",
            log=f"kafka://{connection.bootstrap}",
            spark=spark,
        )
        health.count_available()
        assert health.starting_offsets() == {name: {"0": 10, "1": 11}}
        health.stop()
    messages = read(connection, f"{name}-metrics")
    found = {}
    for one in messages:
        key = one.key() or b""
        count = decode(key, one.value())
        found[key.decode().replace(f'"{name}"', '"tx"')] = count.value, count.offset
    assert found == LINES
    assert len(messages) == len(LINES)


@pytest.mark.timeout(600)
def test_counts_are_exact_whoever_is_killed(
    broker: DevBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    broker.up()  # skipped where there is none
    status = chaos.main(
        ["--kafka", "--on", "process", "--messages", "30000", "--kills", "2", "--json"]
    )
    row = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (status, row["clean"], row["killed"]) == (0, True, 2), row
