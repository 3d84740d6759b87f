"""Retention and compaction: what goes, what stays, and when it happens."""

import fcntl
import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brokers.embedded.helpers import Clock, ask, keyed, numbered, records, values
from thulawa.brokers.embedded import Cleaned, Log, ProducerRecord, Retention, cleaning
from thulawa.errors import LogBusy

SECOND = 1000


def write_batches(log: Log, topic: str, *timestamps: int) -> None:
    """Write one record a batch."""
    for number, timestamp in enumerate(timestamps):
        log.append({topic: numbered([number], timestamp=timestamp)})


# Retention.


@pytest.fixture
def aged(log: Log, clock: Clock) -> Log:
    clock.seconds = 1000
    log.create_topic("visits", retention=Retention(seconds=100))
    return log


def test_what_is_older_than_the_retention_goes(aged: Log) -> None:
    write_batches(aged, "visits", 0, 899 * SECOND, 900 * SECOND, 1000 * SECOND)
    assert aged.clean("visits").records == 2
    assert [record.offset for record in records(aged, "visits")] == [2, 3]
    assert aged.start_offsets("visits") == {0: 2}
    assert aged.end_offsets("visits") == {0: 4}


def test_an_old_record_behind_a_fresh_one_stays(aged: Log) -> None:
    write_batches(aged, "visits", 0, 950 * SECOND, 0)
    aged.clean("visits")
    assert [record.offset for record in records(aged, "visits")] == [1, 2]


def test_a_record_from_the_future_does_not_keep_the_old_ones_behind_it(aged: Log) -> None:
    write_batches(aged, "visits", 10**15, 0, 950 * SECOND, 10**15)
    aged.clean("visits")
    assert [record.offset for record in records(aged, "visits")] == [2, 3]


def test_a_batch_stays_while_any_of_its_records_is_fresh(aged: Log) -> None:
    old, fresh = keyed(("a", "1"), timestamp=0), keyed(("a", "2"), timestamp=950 * SECOND)
    aged.append({"visits": [*old, *fresh, *old]})
    aged.clean("visits")
    assert len(records(aged, "visits")) == 3


def test_everything_may_go_and_offsets_go_on(aged: Log) -> None:
    write_batches(aged, "visits", 0, 0, 0)
    aged.clean("visits")
    assert (aged.start_offsets("visits"), aged.end_offsets("visits")) == ({0: 3}, {0: 3})
    write_batches(aged, "visits", 1000 * SECOND)
    assert [record.offset for record in records(aged, "visits")] == [3]


def test_cleaning_twice_removes_nothing_more(aged: Log) -> None:
    write_batches(aged, "visits", 0, 1000 * SECOND)
    aged.clean("visits")
    assert aged.clean("visits") == Cleaned(0, 0)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 8), max_size=8),
    keep=st.integers(1, 25),
)
def test_retention_by_records_keeps_the_newest_in_whole_batches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], keep: int
) -> None:
    with Log(f"file:{tmp_path_factory.mktemp('log')}") as log:
        log.create_topic("visits", retention=Retention(records=keep))
        for size in sizes:
            log.append({"visits": numbered(range(size))})
        log.clean("visits")
        starts = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        wanted = max((start for start in starts if sum(sizes) - start >= keep), default=0)
        assert log.start_offsets("visits") == {0: wanted}
        assert len(records(log, "visits")) == sum(sizes) - wanted


def test_retention_by_bytes_keeps_at_least_that_much_in_each_partition(log: Log) -> None:
    log.create_topic("visits", partitions=2, retention=Retention(bytes=2500))
    for _ in range(5):
        log.append({"visits": [ProducerRecord(value=bytes(1000), partition=1)]})
    log.append({"visits": [ProducerRecord(value=bytes(1000), partition=0)]})
    log.clean("visits")
    assert log.start_offsets("visits") == {0: 0, 1: 2}


def test_a_topic_without_retention_keeps_everything(log: Log) -> None:
    log.create_topic("visits")
    write_batches(log, "visits", 0, 0)
    assert log.clean("visits") == Cleaned(0, 0)
    assert len(records(log, "visits")) == 2


# Compaction.


def test_the_last_value_of_each_key_stays_at_its_offset(log: Log) -> None:
    log.create_topic("table", compact=True)
    log.append({"table": keyed(("a", "1"), ("b", "1"), ("a", "2"))})
    log.append({"table": keyed(("c", "1"), ("b", "2"))})
    assert log.clean("table").records == 2
    kept = [(record.offset, record.key, record.value) for record in records(log, "table")]
    assert kept == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert log.start_offsets("table") == {0: 0}


def test_a_tombstone_stays_for_a_while_after_the_compaction_that_passed_it(
    log: Log, clock: Clock
) -> None:
    log.create_topic("table", compact=True, retention=Retention(tombstones=60))
    log.append({"table": keyed(("a", "1"), ("a", None), ("b", "1"), timestamp=0)})
    log.clean("table")
    assert values(log, "table") == [None, b"1"]
    clock.seconds += 59
    log.clean("table")
    assert values(log, "table") == [None, b"1"]
    clock.seconds += 1
    log.clean("table")
    assert values(log, "table") == [b"1"]


def test_a_later_compaction_does_not_make_an_older_tombstone_wait_again(
    log: Log, clock: Clock
) -> None:
    log.create_topic("table", compact=True, retention=Retention(tombstones=60))
    log.append({"table": keyed(("a", None))})
    for _ in range(3):
        log.clean("table")
        clock.seconds += 30
        log.append({"table": keyed(("b", None))})
    log.clean("table")
    assert [record.key for record in records(log, "table")] == [b"b"]


def test_what_is_left_of_small_batches_is_put_together(log: Log) -> None:
    log.create_topic("table", compact=True)
    for number in range(50):
        log.append({"table": keyed((f"k{number}", "v"))})
    log.clean("table")
    assert len(records(log, "table")) == 50
    (batches,) = ask(log, "SELECT count(*) FROM batches")[0]
    assert batches == 7  # eight at a time


def test_large_batches_are_not_put_together(log: Log) -> None:
    log.create_topic("table", compact=True)
    for number in range(5):
        log.append({"table": keyed((f"k{number}", "v" * 400_000), ("x", str(number)))})
    log.clean("table")
    counts = [count for (count,) in ask(log, "SELECT count FROM batches ORDER BY id")]
    assert counts == [2, 2, 2]
    assert log.clean("table") == Cleaned(0, 0)


def test_timestamps_and_headers_survive_compaction(log: Log) -> None:
    log.create_topic("table", compact=True)
    with log.producer() as producer:
        producer.send("table", key=b"a", value=b"1")
        producer.send("table", key=b"a", value=b"2", headers={"h": b"x"}, timestamp=77)
    log.clean("table")
    assert records(log, "table") == [("table", 0, 1, 77, b"a", b"2", (("h", b"x"),))]


def test_compaction_and_retention_work_together(log: Log, clock: Clock) -> None:
    clock.seconds = 1000
    log.create_topic("table", compact=True, retention=Retention(seconds=100))
    for key, stamp in (("a", 0), ("b", 950), ("c", 960), ("b", 970)):
        log.append({"table": keyed((key, str(stamp)), timestamp=stamp * SECOND)})
    log.clean("table")
    assert values(log, "table") == [b"960", b"970"]
    assert log.start_offsets("table") == {0: 1}


def test_a_reader_in_the_middle_of_a_compaction_sees_every_last_value(log: Log) -> None:
    log.create_topic("table", compact=True)
    for turn in range(3):
        log.append({"table": keyed(*((str(key), str(turn)) for key in range(3000)))})
    reader = log.read("table", 0, 0)
    seen = {record.key: record.value for record, _ in zip(reader, range(100), strict=False)}
    log.clean("table")
    seen |= {record.key: record.value for record in reader}
    assert seen == {b"%d" % key: b"2" for key in range(3000)}


# When it runs.


def test_a_topic_that_has_grown_enough_is_cleaned_by_its_writer(log: Log) -> None:
    log.create_topic("table", compact=True)
    log.append({"table": keyed(*((str(n % 10), str(n)) for n in range(9_999)))})
    assert log.describe("table").partitions[0].records == 9_999
    log.append({"table": keyed(("x", "1"))})
    assert log.describe("table").partitions[0].records == 11


def test_the_next_cleaning_waits_until_the_topic_has_grown_by_what_the_last_one_left(
    log: Log,
) -> None:
    log.create_topic("table", compact=True)
    log.append({"table": keyed(*((str(n), "1") for n in range(12_000)))})
    log.append({"table": keyed(*(("0", "1") for _ in range(11_999)))})
    assert log.describe("table").partitions[0].records == 23_999
    log.append({"table": keyed(("0", "1"))})
    assert log.describe("table").partitions[0].records == 12_000


def test_cleaning_by_writers_can_be_switched_off(log: Log) -> None:
    log.create_topic("table", compact=True)
    with Log(log.address, auto_clean=False) as manual:
        manual.append({"table": keyed(*(("0", "1") for _ in range(10_000)))})
    assert log.describe("table").partitions[0].records == 10_000


def test_a_writer_does_not_wait_for_another_cleaner(log: Log) -> None:
    log.create_topic("table", compact=True)
    with (Path(log.address.removeprefix("file:")) / "cleaning.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.append({"table": keyed(*(("0", "1") for _ in range(10_000)))})
        assert log.describe("table").partitions[0].records == 10_000
    assert log.clean("table").records == 9_999


def test_a_cleaning_that_was_asked_for_waits_for_its_turn(log: Log) -> None:
    log.create_topic("table", compact=True)
    log.append({"table": keyed(("a", "1"), ("a", "2"))})
    cleaner = threading.Thread(target=log.clean, args=("table",))
    with (Path(log.address.removeprefix("file:")) / "cleaning.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cleaner.start()
        cleaner.join(0.3)
        assert values(log, "table") == [b"1", b"2"]
    cleaner.join()
    assert values(log, "table") == [b"2"]


def test_a_cleaning_that_fails_does_not_fail_the_write(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> Cleaned:
        raise LogBusy("on purpose")

    log.create_topic("table", compact=True)
    monkeypatch.setattr(cleaning, "clean", refuse)
    with caplog.at_level(logging.WARNING):
        written = log.append({"table": keyed(*(("0", "1") for _ in range(10_000)))})
    assert written.records == 10_000
    assert "table was not cleaned: on purpose" in caplog.text
