"""Instances of WindowCounts: shared partitions, sinks, lost messages, errors."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.health.helpers import FIRST, LINES, is_valid, lines_of, story, values
from tests.health.local import LocalCounts
from thulawa.brokers.embedded import Log, ProducerRecord, Retention
from thulawa.core.types import TopicPartition
from thulawa.errors import (
    ConfigurationError,
    StateError,
)
from thulawa.health import Count


def counting(address: str, **more: Any) -> LocalCounts:
    given: dict[str, Any] = {"status": is_valid, "output": "metrics", "application_id": "health"}
    return LocalCounts("tx", log=address, **(given | more))


def test_the_next_instance_sends_totals_that_a_sink_missed(tmp_path: Path) -> None:
    address = story(tmp_path)

    def down(_: Sequence[Count]) -> None:
        raise ConnectionError("no")

    with pytest.raises(ConnectionError):
        counting(address, sinks=[down]).count_available()
    shown: list[Count] = []
    after = counting(address, sinks=[shown.extend])
    assert after.count_available() == 0
    assert values(shown) == values(after.counts())
    assert len(shown) == 11


def test_messages_of_a_failed_write_are_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = story(tmp_path)
    one = counting(address)
    write = one._changelog.write
    failing = iter([ConnectionError("the broker is away")])

    def fails_once(*arguments: Any) -> Any:
        for error in failing:
            raise error
        return write(*arguments)

    monkeypatch.setattr(one._changelog, "write", fails_once)
    with pytest.raises(ConnectionError):
        one.count_available()
    assert one.count_available() == 21
    fresh = counting(address)
    assert fresh.count_available() == 0
    assert values(one.counts()) == values(fresh.counts())
    assert len(values(fresh.counts())) == 11


def test_two_instances_with_the_same_partitions_count_once(tmp_path: Path) -> None:
    address = story(tmp_path)
    one, other = counting(address), counting(address)
    assert one.starting_offsets() == other.starting_offsets() == {"tx": {"0": 0, "1": 0}}
    assert one.count_available() == 21
    other.count_available()  # counts them too, and is not let through
    with Log(address) as log:
        assert lines_of(log, "metrics") == LINES
        assert log.end_offsets("metrics") == {0: 11}
        log.append({"tx": [ProducerRecord(None, b"v", (), FIRST, 0)]})
    assert other.count_available() == 1
    assert one.count_available() == 1
    assert values(one.counts()) == values(other.counts())


def test_an_error_ends_the_application_and_is_raised_by_await_termination(tmp_path: Path) -> None:
    def broken(_: bytes | None) -> bool:
        raise ZeroDivisionError

    health = counting(story(tmp_path), status=broken).start()
    with pytest.raises(ZeroDivisionError):
        health.await_termination("60 s")
    with pytest.raises(ZeroDivisionError):
        health.process_all_available()
    assert health.stop()


def test_process_all_available_raises_the_error_of_a_sink(tmp_path: Path) -> None:
    def down(_: Sequence[Count]) -> None:
        raise ConnectionError("no")

    with counting(story(tmp_path), sinks=[down]) as health, pytest.raises(ConnectionError):
        health.process_all_available("60 s")


def test_a_cancelled_job_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cancelled(_: Sequence[Count]) -> None:
        raise RuntimeError("[SPARK_JOB_CANCELLED] Job 0 cancelled\n\tat org.apache.spark …")

    with counting(story(tmp_path), sinks=[cancelled]) as health, pytest.raises(RuntimeError):
        health.await_termination("60 s")
    assert [one.getMessage() for one in caplog.records] == [
        "health has ended: Spark's job was cancelled"
    ]


def test_an_unknown_partition_is_rejected_at_the_start(tmp_path: Path) -> None:
    health = counting(story(tmp_path), partitions={"tx": iter([0, 2])})
    for begin in (health.start, health.count_available, health.starting_offsets):
        with pytest.raises(ConfigurationError, match="no partition 2"):
            begin()


def test_count_batch_rejects_shared_partitions(tmp_path: Path) -> None:
    health = counting(story(tmp_path), partitions="shared")
    with pytest.raises(ConfigurationError, match="name them"):
        health.starting_offsets()
    with pytest.raises(ConfigurationError, match="name them"):
        health.count_batch(None)


def test_messages_that_were_removed_before_they_were_counted_are_an_error(tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        log.create_topic("tx", retention=Retention(records=1))
        log.append({"tx": [ProducerRecord(None, b"v", (), FIRST)]})
        counting(address).count_available()
        for second in range(3):
            log.append({"tx": [ProducerRecord(None, b"v", (), FIRST + second)]})
        log.clean("tx")
        assert log.start_offsets("tx")[0] > 1
    with pytest.raises(StateError, match="lost="):
        counting(address).count_available()
    assert counting(address, lost="skip").count_available() == 1


def removing(log: Log, address: str, **more: Any) -> LocalCounts:
    """Return an instance whose next messages, except the last, are removed while it counts."""
    log.create_topic("tx", retention=Retention(records=1))
    log.append({"tx": [ProducerRecord(None, b"v", (), FIRST)]})
    health = counting(address, **more)
    assert health.count_available() == 1
    count = health._counted

    def slow(ranges: Any) -> Any:
        for second in range(3):
            log.append({"tx": [ProducerRecord(None, b"v", (), FIRST + second)]})
        log.clean("tx")
        health._counted = count  # type: ignore[method-assign]
        return count(ranges)

    health._counted = slow  # type: ignore[method-assign]
    log.append({"tx": [ProducerRecord(None, b"v", (), FIRST)]})
    return health


def test_messages_that_are_removed_while_it_counts_are_an_error(tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        health = removing(log, address)
        with pytest.raises(StateError, match="lost="):
            health.count_available()
        assert [value for value, _ in lines_of(log, "metrics").values()] == [1]


def test_messages_that_are_removed_while_it_counts_may_be_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        health = removing(log, address, lost="skip")
        assert health.count_available() == 1
        assert [value for value, _ in lines_of(log, "metrics").values()] == [2]
    assert "offsets 1 to 4 were removed" in caplog.text


def test_removed_messages_that_another_instance_counted_are_not_lost(tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        log.create_topic("tx", retention=Retention(records=1))
        behind, ahead = counting(address), counting(address)
        for expected, instance in enumerate([behind, ahead, ahead, behind], 1):
            log.append({"tx": [ProducerRecord(None, b"v", (), FIRST)]})
            log.clean("tx")
            assert instance.count_available() == 1
            assert [value for value, _ in lines_of(log, "metrics").values()] == [expected]


def test_late_messages_that_were_read_may_be_removed(tmp_path: Path) -> None:
    address = f"file:{tmp_path}/topics"
    with Log(address) as log:
        log.create_topic("tx", retention=Retention(records=1))
        for time in (FIRST, FIRST + 9_000, FIRST):
            log.append({"tx": [ProducerRecord(None, b"v", (), time)]})
        assert counting(address, expire="1 second").count_available() == 2
        log.append({"tx": [ProducerRecord(None, b"v", (), FIRST)]})
        assert counting(address, expire="1 second").count_available() == 0
        log.append({"tx": [ProducerRecord(None, b"v", (), FIRST + 9_000)]})
        log.clean("tx")
    assert counting(address, expire="1 second").count_available() == 1


def test_a_deleted_output_is_an_error(tmp_path: Path) -> None:
    address = story(tmp_path)
    counting(address).count_available()
    with Log(address) as log:
        log.delete_topic("metrics")
    with pytest.raises(StateError, match="application_id"):
        counting(address).count_available()
    assert counting(address, application_id="anew").count_available() == 21


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partitions": "some"}, "shared"),
        ({"partitions": {"other": [0]}}, "other"),
        ({"lost": "ignore"}, "skip"),
        ({"max_records": 0}, "max_records"),
        ({"status": {"type": "object"}}, "json_schema"),
        ({"window": 0}, "window"),
        ({"application_id": "no/slash"}, "application"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_rejected(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        counting(story(tmp_path), **options)


def test_partitions_may_be_named(tmp_path: Path) -> None:
    address = story(tmp_path)
    places = [TopicPartition("tx", number) for number in range(2)]
    assert counting(address, partitions={"tx": iter([1, 7])})._owned() == {places[1]}
    assert counting(address)._owned() == set(places)


def test_shared_partitions_are_counted_while_instances_start_and_stop(tmp_path: Path) -> None:
    address = story(tmp_path)
    with counting(address, partitions="shared", every="10 ms") as one:
        one.process_all_available("60 s")
        with counting(address, partitions="shared", every="10 ms") as other:
            deadline = time.monotonic() + 60
            while len(other.counts()) not in (5, 6):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with Log(address) as log:
                for partition in (0, 1):
                    log.append({"tx": [ProducerRecord(None, b"v", (), FIRST, partition)]})
            one.process_all_available("60 s")
            other.process_all_available("60 s")
    with Log(address) as log:
        found = {key: value for key, (value, _) in lines_of(log, "metrics").items()}
    more = f'{FIRST},"status":"valid"}}'
    assert found == {key: value + key.endswith(more) for key, (value, _) in LINES.items()}


def recreated(address: str, messages: int) -> None:
    with Log(address) as log:
        log.delete_topic("tx")
        log.create_topic("tx", partitions=2)
        log.append({"tx": [ProducerRecord(None, b"v", (), FIRST, 0)] * messages})


@pytest.mark.parametrize("messages", [3, 10, 25])  # fewer than were counted, as many, more
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_topic_that_was_created_again_is_rejected(
    tmp_path: Path, messages: int, *, restarted: bool
) -> None:
    address = story(tmp_path)
    one = counting(address)
    assert one.count_available() == 21
    recreated(address, messages)
    again = counting(address) if restarted else one
    with pytest.raises(StateError, match="'tx' is not the one that was counted"):
        again.count_available()
    assert counting(address, application_id="new", output="other").count_available() == messages


def test_a_truncated_topic_is_rejected(tmp_path: Path) -> None:
    address = story(tmp_path)
    one = counting(address)
    one.count_available()
    ends = one._broker.end_offsets
    one._broker.end_offsets = lambda *topics: {"tx": dict.fromkeys(ends("tx")["tx"], 5)}  # type: ignore[method-assign]
    with pytest.raises(StateError, match="lost messages at its end"):
        one.count_available()
