"""Consumers: order, positions, groups and waiting."""

import threading
import time
from pathlib import Path

import pytest

from tests.brokers.embedded.helpers import Clock, keyed, numbered
from thulawa.brokers.embedded import Consumer, Log, Retention
from thulawa.brokers.embedded.consumer import Waiter
from thulawa.brokers.embedded.database import Database
from thulawa.errors import ConfigurationError, OffsetOutOfRange, UnknownTopic


def polled(consumer: Consumer, most: int = 500) -> list[int]:
    """Poll once; give the values as numbers."""
    return [int(record.value or b"-1") for record in consumer.poll(most)]


def drained(consumer: Consumer, most: int = 500) -> list[int]:
    everything: list[int] = []
    while numbers := polled(consumer, most):
        everything += numbers
    return everything


@pytest.mark.parametrize("most", [1, 7, 1000, 5000])
def test_every_record_comes_once_and_in_order_however_many_are_asked_for(
    log: Log, most: int
) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(2500 if most > 1 else 50))})
    with log.consumer("visits") as consumer:
        assert drained(consumer, most) == list(range(2500 if most > 1 else 50))
        assert consumer.lag() == {0: 0}


def test_a_poll_gives_no_more_than_asked_for(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(100))})
    with log.consumer("visits") as consumer:
        assert polled(consumer, 30) == list(range(30))
        assert (consumer.position(0), consumer.lag(), consumer.end_offsets()) == (
            30,
            {0: 70},
            {0: 100},
        )


def test_a_long_partition_does_not_starve_the_others(log: Log) -> None:
    log.create_topic("visits", partitions=3)
    log.append({"visits": numbered(range(5000), partition=0)})
    log.append({"visits": numbered([-1], partition=1)})
    log.append({"visits": numbered([-2], partition=2)})
    with log.consumer("visits") as consumer:
        first, second = polled(consumer, 100), polled(consumer, 100)
    assert first == list(range(100))
    assert second[:2] == [-1, -2]


def test_a_consumer_may_read_some_partitions_only(log: Log) -> None:
    log.create_topic("visits", partitions=3)
    for partition in range(3):
        log.append({"visits": numbered([partition], partition=partition)})
    with log.consumer("visits", partitions=[2, 0]) as consumer:
        assert polled(consumer) == [0, 2]
        assert set(consumer.positions()) == {0, 2}
    with pytest.raises(UnknownTopic, match="0 to 2"):
        log.consumer("visits", partitions=[3])


def test_start_says_where_a_new_consumer_begins(log: Log) -> None:
    log.create_topic("visits", partitions=2)
    for partition in (0, 1):
        log.append({"visits": numbered(range(5), partition=partition)})
    for start, lag in (
        ("earliest", {0: 5, 1: 5}),
        ("latest", {0: 0, 1: 0}),
        ({0: 3}, {0: 2, 1: 5}),
    ):
        with log.consumer("visits", start=start) as consumer:  # type: ignore[arg-type]
            assert consumer.lag() == lag
    with pytest.raises(ConfigurationError, match="earliest"):
        log.consumer("visits", start="newest")  # type: ignore[arg-type]


def test_a_group_goes_on_where_it_committed_whatever_start_says(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(10))})
    with log.consumer("visits", group="g") as consumer:
        consumer.poll(4)
        consumer.commit()
        consumer.poll(4)
    with log.consumer("visits", group="g", start="latest") as consumer:
        assert polled(consumer) == [4, 5, 6, 7, 8, 9]
    with log.consumer("visits", group="other") as consumer:
        assert len(polled(consumer)) == 10


def test_positions_can_be_committed_one_by_one(log: Log) -> None:
    log.create_topic("visits", partitions=2)
    log.append({"visits": numbered(range(10), partition=1)})
    with log.consumer("visits", group="g") as consumer:
        consumer.commit({1: 7})
    with log.consumer("visits", group="g") as consumer:
        assert consumer.positions() == {0: 0, 1: 7}


def test_what_a_group_has_committed_can_be_asked_for_and_forgotten(log: Log) -> None:
    assert log.committed("g") == {}
    log.forget_group("g")
    for topic in ("visits", "orders"):
        log.create_topic(topic, partitions=2)
        log.append({topic: numbered(range(10), partition=1)})
        for group in ("g", "other"):
            with log.consumer(topic, group=group) as consumer:
                consumer.commit({1: 7})
    assert log.committed("g") == {"visits": {1: 7}, "orders": {1: 7}}
    log.forget_group("g")
    assert log.committed("g") == {}
    assert log.committed("other") == {"visits": {1: 7}, "orders": {1: 7}}


@pytest.mark.parametrize("offset", [-1, 11])
def test_a_position_outside_the_log_is_not_committed(log: Log, offset: int) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(10))})
    with log.consumer("visits", group="g") as consumer, pytest.raises(ConfigurationError):
        consumer.commit({0: offset})


def test_committing_needs_a_group(log: Log) -> None:
    log.create_topic("visits")
    with log.consumer("visits") as consumer, pytest.raises(ConfigurationError, match="group="):
        consumer.commit()


def test_seek_goes_back_and_forth(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(10))})
    with log.consumer("visits") as consumer:
        consumer.poll(5)
        for offset in (2, 8, 0, 10):
            consumer.seek(0, offset)
            assert polled(consumer) == list(range(offset, 10))
        with pytest.raises(ConfigurationError):
            consumer.seek(1, 0)
        with pytest.raises(ConfigurationError):
            consumer.seek(0, -1)
        consumer.seek(0, 11)
        with pytest.raises(OffsetOutOfRange, match="0 to 10"):
            consumer.poll()


def test_a_consumer_that_retention_overtook_is_told_and_can_go_on(log: Log) -> None:
    log.create_topic("visits", retention=Retention(records=1))
    with log.consumer("visits", group="g") as consumer:
        for number in range(5):
            log.append({"visits": numbered([number])})
        log.clean("visits")
        with pytest.raises(OffsetOutOfRange) as error:
            consumer.poll()
        assert (error.value.offset, error.value.start, error.value.end) == (0, 4, 5)
        consumer.seek(0, 4)
        assert polled(consumer) == [4]


def test_the_position_moves_over_what_compaction_removed(log: Log, clock: Clock) -> None:
    log.create_topic("table", compact=True, retention=Retention(tombstones=0))
    log.append({"table": keyed(("a", "1"), ("b", "2"), ("a", None))})
    log.clean("table")
    clock.seconds += 1
    log.clean("table")
    with log.consumer("table") as consumer:
        assert polled(consumer) == [2]
        assert consumer.position(0) == 3
        assert consumer.lag() == {0: 0}


def test_a_poll_that_finds_nothing_returns_when_its_time_is_over(log: Log) -> None:
    log.create_topic("visits")
    with log.consumer("visits") as consumer:
        begun = time.monotonic()
        assert consumer.poll(timeout=0.2) == []
        assert 0.2 <= time.monotonic() - begun < 2
        assert consumer.poll() == []
        with pytest.raises(ConfigurationError):
            consumer.poll(0)


def test_a_waiting_consumer_gets_a_record_soon_after_it_is_written(log: Log) -> None:
    log.create_topic("visits")
    with log.consumer("visits") as consumer:
        writer = threading.Timer(0.3, lambda: log.append({"visits": numbered([7])}))
        writer.start()
        begun = time.monotonic()
        assert [record.value for record in consumer.poll(timeout=20)] == [b"7"]
        assert time.monotonic() - begun < 5
        writer.join()


class Pauses:
    """A clock that moves when something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_waiting_sleeps_longer_and_longer_and_never_past_its_end(log: Log) -> None:
    log.create_topic("visits")
    pauses = Pauses()
    database = Database(Path(log.address.removeprefix("file:")))
    waiter = Waiter(database, clock=lambda: pauses.now, sleep=pauses.sleep)
    assert not waiter.wait(database.version(), waiter.deadline(1.0))
    assert pauses.pauses[:7] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05]
    assert len(pauses.pauses) < 30
    assert pauses.now == pytest.approx(1.0)
    version = database.version()
    log.append({"visits": numbered([1])})
    assert waiter.wait(version, waiter.deadline(0.0))
    database.close()


def test_threads_may_share_a_log(log: Log) -> None:
    log.create_topic("visits", partitions=4)

    def write(partition: int) -> None:
        for number in range(20):
            log.append({"visits": numbered([number], partition=partition)})

    threads = [threading.Thread(target=write, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.end_offsets("visits") == dict.fromkeys(range(4), 20)
