"""Batches that are read and written as they are stored hold the same records."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.batches import unpack
from thulawa.brokers.embedded.packing import BATCH_BYTES, fields_of, packed_plainly
from thulawa.errors import DamagedLog, InvalidRecord


def records(count: int, start: int = 0) -> list[ProducerRecord]:
    return [
        ProducerRecord(b"k%d" % n, b"v%d" % n if n % 7 else None, (), 1000 + n)
        for n in range(start, start + count)
    ]


def blobs(rows: list[ProducerRecord]) -> list[bytes]:
    return list(packed_plainly(fields_of(rows), "t"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3500), min_size=2, max_size=2).map(sorted))
def test_what_is_read_packed_is_what_is_read(tmp_path: Path, bounds: list[int]) -> None:
    with Log(f"file:{tmp_path}/topics") as log:
        if "t" not in log.topics():
            log.create_topic("t")
            log.append({"t": records(2500)})
            log.append({"t": records(1000, 2500)})
        start, end = bounds
        packed = [
            row
            for first, data in log.read_packed("t", 0, start, end)
            for row in unpack(data, first).rows()
        ]
        plain = [
            (one.offset, one.timestamp, one.key, one.value, one.headers)
            for one in log.read("t", 0, start, end)
        ]
        assert packed == plain
        assert len(packed) == end - start


def test_packed_batches_land_where_their_records_would(log: Log) -> None:
    for name in ("packed", "plain"):
        log.create_topic(name, partitions=3)
    log.append({"plain": records(2000)})
    log.append_packed(
        [("packed", None, data) for data in blobs(records(2000))], marker=("w", 0), batch=0
    )
    for partition in range(3):
        assert [one[3:] for one in log.read("packed", partition, 0)] == [
            one[3:] for one in log.read("plain", partition, 0)
        ]


def test_headers_count_towards_the_size_of_a_stored_batch(log: Log) -> None:
    log.create_topic("t")
    log.create_topic("table", compact=True)
    heavy = [
        ProducerRecord(b"%d" % number, b"", (("note", b"x" * 10_000),), timestamp=1)
        for number in range(1_000)
    ]
    log.append({"t": heavy, "table": heavy})
    log.append_packed([("t", 0, data) for data in blobs(heavy)], marker=("w", 0), batch=0)
    log.clean("table")
    for topic, count in (("t", 2_000), ("table", 1_000)):
        stored = [data for _, data in log.read_packed(topic, 0, 0, count)]
        assert sum(len(unpack(data, 0).keys) for data in stored) == count
        assert max(map(len, stored)) < 1.1 * BATCH_BYTES


def test_a_producer_sends_when_headers_alone_fill_its_memory(log: Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        for _ in range(20):
            producer.send("t", key=b"k", value=b"", headers={"note": b"x" * 2**20})
        assert log.end_offsets("t")[0] >= 15


def test_a_record_without_a_timestamp_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="no timestamp"):
        blobs([*records(3), ProducerRecord(b"k", b"v")])


def test_a_chosen_partition_gets_the_batch_as_it_is(log: Log) -> None:
    log.create_topic("t", partitions=2)
    (data,) = blobs(records(10))
    log.append_packed([("t", 1, data)], marker=("w", 0), batch=0)
    assert list(log.read_packed("t", 1, 0, 10)) == [(0, data)]


def test_a_packed_batch_is_written_once(log: Log) -> None:
    log.create_topic("t")
    (data,) = blobs(records(10))
    assert not log.append_packed([("t", None, data)], marker=("w", 0), batch=4).skipped
    assert log.append_packed([("t", None, data)], marker=("w", 0), batch=4).skipped
    assert log.end_offsets("t") == {0: 10}


def test_a_compacted_topic_refuses_packed_records_without_a_key(log: Log) -> None:
    log.create_topic("t", compact=True)
    (data,) = blobs([ProducerRecord(None, b"v", (), 1)])
    with pytest.raises(InvalidRecord, match="needs a key"):
        log.append_packed([("t", None, data)], marker=("w", 0), batch=0)


def test_a_damaged_packed_batch_is_not_written(log: Log) -> None:
    log.create_topic("t")
    (data,) = blobs(records(10))
    with pytest.raises(DamagedLog, match="checksum"):
        log.append_packed([("t", None, data[:-1] + b"!")], marker=("w", 0), batch=0)
    assert log.end_offsets("t") == {0: 0}


def test_records_that_the_log_cannot_hold_are_refused_when_packed() -> None:
    with pytest.raises(InvalidRecord, match="timestamp"):
        blobs([ProducerRecord(b"k", b"v", (), -1)])
