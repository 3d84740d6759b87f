"""Appending and producing: offsets, batches, exactly once, and what is refused."""

from contextlib import suppress
from typing import Any

import pytest

from tests.brokers.embedded.helpers import Clock, ask, keyed, numbered, records, values
from thulawa.brokers.embedded import (
    Appended,
    Cleaned,
    Log,
    ProducerRecord,
    cleaning,
    packing,
    partition_of,
    writing,
)
from thulawa.errors import (
    BrokerError,
    ConfigurationError,
    InvalidRecord,
    RecordTooLarge,
    StateError,
    UnknownTopic,
)


def test_offsets_start_at_0_and_rise_by_one_in_each_partition(log: Log) -> None:
    log.create_topic("visits", partitions=2)
    for start in range(0, 100, 10):
        log.append({"visits": numbered(range(start, start + 10), partition=start // 10 % 2)})
    for partition in (0, 1):
        assert [r.offset for r in records(log, "visits", partition)] == list(range(50))


def test_a_record_comes_back_as_it_was_sent(log: Log, clock: Clock) -> None:
    log.create_topic("visits")
    with log.producer() as producer:
        producer.send(
            "visits",
            key=b"\x00k",
            value=b"",
            headers={"agent": b"curl", "empty": None},
            timestamp=5,
        )
        producer.send("visits", headers=[("twice", b"1"), ("twice", b"2")])
    first, second = records(log, "visits")
    assert first == ("visits", 0, 0, 5, b"\x00k", b"", (("agent", b"curl"), ("empty", None)))
    assert second[3:] == (
        int(clock.seconds * 1000),
        None,
        None,
        (("twice", b"1"), ("twice", b"2")),
    )


def test_appending_says_which_offsets_were_given_out(log: Log) -> None:
    log.create_topic("a", partitions=2)
    log.create_topic("b")
    log.append({"a": numbered(range(3), partition=1)})
    appended = log.append({"a": numbered(range(2), partition=1), "b": numbered(range(4))})
    assert appended.offsets == {("a", 1): range(3, 5), ("b", 0): range(4)}
    assert (appended.records, appended.skipped) == (6, False)


def test_many_records_are_stored_in_batches_of_bounded_number_and_size(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(2500))})
    log.append({"visits": [ProducerRecord(b"k", b"x" * 400_000) for _ in range(5)]})
    counts = [count for (count,) in ask(log, "SELECT count FROM batches ORDER BY id")]
    assert counts == [1000, 1000, 500, 2, 1, 2]
    assert len(values(log, "visits")) == 2505


def test_keys_are_spread_by_kafkas_rule(log: Log) -> None:
    log.create_topic("visits", partitions=4)
    log.append({"visits": keyed(*((str(n), "v") for n in range(100)))})
    for partition in range(4):
        found = [record.key for record in records(log, "visits", partition)]
        assert found
        assert all(partition_of(key, 4) == partition for key in found if key is not None)


# Exactly once.


def test_a_batch_that_is_sent_again_is_skipped_and_says_so(log: Log) -> None:
    log.create_topic("visits")
    for _ in range(2):
        appended = log.append({"visits": keyed(("a", "1"))}, marker=("geo/sink", 0), batch=0)
    assert appended.skipped
    assert appended.records == 0
    assert values(log, "visits") == [b"1"]


def test_a_newer_batch_is_written_and_an_older_one_refused(log: Log) -> None:
    log.create_topic("visits")
    outcomes = [
        log.append({"visits": numbered([batch])}, marker=("geo", 0), batch=batch).skipped
        for batch in (3, 3, 7)
    ]
    assert outcomes == [False, True, False]
    with pytest.raises(StateError, match=r"task 0 of geo has written batch 7.*sends batch 4"):
        log.append({"visits": numbered([4])}, marker=("geo", 0), batch=4)
    assert values(log, "visits") == [b"3", b"7"]


def test_a_batch_of_packed_records_that_is_older_is_refused(log: Log) -> None:
    log.create_topic("visits")
    log.append_packed([], marker=("geo", 1), batch=7)
    with pytest.raises(StateError, match="Put the newest checkpoint back, or begin with a new"):
        log.append_packed([], marker=("geo", 1), batch=6)


def test_a_batch_that_is_sent_again_by_other_tasks_is_refused(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered([1])}, marker=("geo", 0), batch=3, layout="four")
    assert log.append({"visits": []}, marker=("geo", 0), batch=3, layout="four").skipped
    with pytest.raises(StateError, match=r"batch 3 with the tasks 'four'.*again with 'one'"):
        log.append({"visits": []}, marker=("geo", 0), batch=3, layout="one")
    assert not log.append({"visits": []}, marker=("geo", 0), batch=4, layout="one").skipped


def test_markers_are_apart_by_writer_and_by_task(log: Log) -> None:
    log.create_topic("visits")
    markers = [("geo", 0), ("geo", 1), ("other", 0)]
    for marker in markers:
        assert not log.append({"visits": numbered([1])}, marker=marker, batch=5).skipped
    assert [log.last_batch(marker) for marker in [*markers, ("geo", 2)]] == [5, 5, 5, None]
    assert log.last_batches("geo") == {0: 5, 1: 5}


def test_a_batch_without_records_counts_too(log: Log) -> None:
    log.create_topic("visits")
    log.append({}, marker=("geo", 0), batch=1)
    log.append({"visits": []}, marker=("geo", 0), batch=2)
    assert log.last_batch(("geo", 0)) == 2


def test_a_second_attempt_that_routes_differently_changes_nothing(log: Log) -> None:
    for topic in ("results", "dead-letters"):
        log.create_topic(topic)
    log.append({"results": [], "dead-letters": numbered([1])}, marker=("geo", 0), batch=0)
    log.append({"results": numbered([1]), "dead-letters": []}, marker=("geo", 0), batch=0)
    assert values(log, "results") + values(log, "dead-letters") == [b"1"]


def test_when_one_topic_refuses_nothing_is_written_to_any(log: Log) -> None:
    log.create_topic("visits")
    log.create_topic("compacted", compact=True)
    bad = {"visits": numbered([1]), "compacted": numbered([2])}
    for refused in (bad, {"visits": numbered([1]), "unknown": []}):
        with pytest.raises(BrokerError):
            log.append(refused, marker=("geo", 0), batch=0)
    assert values(log, "visits") == []
    assert log.last_batch(("geo", 0)) is None


def test_a_topic_that_is_deleted_while_its_records_are_packed_takes_none(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_first(*arguments: Any) -> object:
        log.delete_topic("visits")
        return packing.packed(*arguments)

    log.create_topic("visits")
    monkeypatch.setattr(writing, "packed", delete_first)
    with pytest.raises(UnknownTopic, match="just been deleted"):
        log.append({"visits": numbered([1])}, marker=("geo", 0), batch=0)
    assert ask(log, "SELECT count(*) FROM batches") == [(0,)]
    assert log.last_batch(("geo", 0)) is None


@pytest.mark.parametrize(
    ("marker", "batch"), [(None, 1), (("geo", 0), None), (("geo", -1), 0), (("geo", 0), -1)]
)
def test_half_a_marker_is_refused(log: Log, marker: tuple[str, int] | None, batch: int) -> None:
    with pytest.raises(ConfigurationError):
        log.append({}, marker=marker, batch=batch)


# What is refused.

REFUSED = {
    "str key": (ProducerRecord(key="k"), "key is str"),  # type: ignore[arg-type]
    "bytearray value": (ProducerRecord(value=bytearray(b"v")), "value is bytearray"),  # type: ignore[arg-type]
    "negative timestamp": (ProducerRecord(timestamp=-1), "timestamp -1"),
    "far timestamp": (ProducerRecord(timestamp=2**63), "timestamp"),
    "float timestamp": (ProducerRecord(timestamp=1.5), "timestamp 1.5"),  # type: ignore[arg-type]
    "header name": (ProducerRecord(headers=((b"n", b"v"),)), "header's name"),  # type: ignore[arg-type]
    "header value": (ProducerRecord(headers=(("n", "v"),)), "header 'n' is str"),  # type: ignore[arg-type]
    "oversized": (ProducerRecord(b"k", b"v" * 2**24), "16,777,217 bytes"),
    "oversized headers": (ProducerRecord(headers=(("n", bytes(2**24 + 1)),)), "headers have"),
}


@pytest.mark.parametrize(("record", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_log_cannot_hold_is_refused_before_anything_is_written(
    log: Log, record: ProducerRecord, reason: str
) -> None:
    log.create_topic("visits")
    with pytest.raises((InvalidRecord, RecordTooLarge), match=reason):
        log.append({"visits": [*numbered(range(3)), record]})
    with log.producer() as producer, pytest.raises((InvalidRecord, RecordTooLarge), match=reason):
        producer.send("visits", **record._asdict())
    assert values(log, "visits") == []


def test_a_partition_that_does_not_exist_is_refused(log: Log) -> None:
    log.create_topic("visits", partitions=2)
    log.create_topic("single")
    for partition in (-1, 2):
        with pytest.raises(UnknownTopic, match="0 to 1"):
            log.append({"visits": numbered([1], partition=partition)})
        with pytest.raises(UnknownTopic, match="0 to 0"):
            log.append({"single": numbered([1], partition=partition)})


def test_an_error_shows_no_value(log: Log) -> None:
    log.create_topic("visits")
    with pytest.raises(InvalidRecord) as refusal:
        log.append({"visits": [ProducerRecord(value="secret")]})  # type: ignore[arg-type]
    assert "secret" not in str(refusal.value)


# Producers.


def test_records_wait_until_flush(log: Log) -> None:
    log.create_topic("visits")
    producer = log.producer()
    producer.send("visits", value=b"1")
    assert values(log, "visits") == []
    assert producer.flush().offsets == {("visits", 0): range(1)}
    assert values(log, "visits") == [b"1"]
    assert producer.flush().records == 0


def test_a_full_producer_flushes_by_itself(log: Log) -> None:
    log.create_topic("visits")
    producer = log.producer(batch_records=10)
    for number in range(25):
        producer.send("visits", value=b"%d" % number)
    assert len(values(log, "visits")) == 20


def test_large_records_are_flushed_before_they_fill_the_memory(log: Log) -> None:
    log.create_topic("visits")
    producer = log.producer()
    for _ in range(17):
        producer.send("visits", value=bytes(1024 * 1024))
    assert log.end_offsets("visits") == {0: 16}


def test_leaving_the_block_flushes_by_an_exception_too(log: Log) -> None:
    log.create_topic("visits")
    with suppress(ZeroDivisionError), log.producer() as producer:
        producer.send("visits", value=b"1")
        raise ZeroDivisionError
    assert values(log, "visits") == [b"1"]


def test_an_unknown_topic_is_refused_when_sending(log: Log) -> None:
    log.create_topic("visits")
    with log.producer() as producer, pytest.raises(UnknownTopic):
        producer.send("vists", value=b"1")


def test_after_a_failed_flush_the_records_still_wait(log: Log) -> None:
    log.create_topic("visits")
    producer = log.producer()
    producer.send("visits", value=b"1")
    log.delete_topic("visits")
    with pytest.raises(UnknownTopic):
        producer.flush()
    log.create_topic("visits")
    producer.flush()
    assert values(log, "visits") == [b"1"]


def test_a_flush_that_was_interrupted_after_its_commit_is_not_written_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> Cleaned:
        raise KeyboardInterrupt

    log.create_topic("table", compact=True)
    monkeypatch.setattr(cleaning, "clean", interrupt)
    with suppress(KeyboardInterrupt), log.producer() as producer:
        for number in range(10_000):
            producer.send("table", key=b"%d" % number)
    assert log.end_offsets("table") == {0: 10_000}


def test_what_was_sent_after_an_interrupted_flush_is_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Appended:
        append(*arguments, **options)
        raise KeyboardInterrupt

    log.create_topic("visits")
    with log.producer() as producer:
        append = log.append
        monkeypatch.setattr(log, "append", interrupted)
        producer.send("visits", value=b"1")
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        monkeypatch.undo()
        producer.send("visits", value=b"2")
    assert values(log, "visits") == [b"1", b"2"]


def test_a_closed_producer_leaves_no_marker(log: Log) -> None:
    log.create_topic("visits")
    with log.producer() as producer:
        producer.send("visits", value=b"1")
        producer.flush()
        assert ask(log, "SELECT count(*) FROM markers") == [(1,)]
    assert ask(log, "SELECT count(*) FROM markers") == [(0,)]
    producer.send("visits", value=b"2")
    producer.close()
    assert values(log, "visits") == [b"1", b"2"]


def test_a_forgotten_marker_may_begin_again(log: Log) -> None:
    log.create_topic("visits")
    for _ in range(2):
        assert not log.append({"visits": numbered([1])}, marker=("geo", 0), batch=0).skipped
        log.forget(("geo", 0))


def test_discard_forgets_what_waits(log: Log) -> None:
    log.create_topic("visits")
    producer = log.producer()
    producer.send("visits", value=b"1")
    producer.discard()
    producer.close()
    assert values(log, "visits") == []
