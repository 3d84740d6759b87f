"""The partitioner is Kafka's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brokers.embedded.helpers import numbered
from thulawa.brokers.embedded import Log, ProducerRecord, partition_of
from thulawa.brokers.embedded.packing import Partitioner
from thulawa.core.partitioning import murmur2

# From Kafka's own UtilsTest.testMurmur2, and others made with its Java client.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    bytes((12, 42, 56, 24, 109, 111)): 274204207,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA.items())
def test_murmur2_gives_what_java_gives(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32


@pytest.mark.parametrize(("key", "hashed"), JAVA.items())
def test_a_key_goes_where_a_java_producer_sends_it(key: bytes, hashed: int) -> None:
    positive = hashed & 0x7FFFFFFF
    assert [partition_of(key, n) for n in (1, 2, 3, 12)] == [positive % n for n in (1, 2, 3, 12)]


@given(st.binary(max_size=200), st.integers(1, 100))
def test_the_cache_does_not_change_the_answer(key: bytes, partitions: int) -> None:
    expected = (murmur2(key) & 0x7FFFFFFF) % partitions
    assert [partition_of(key, partitions) for _ in range(2)] == [expected, expected]


def test_keyless_records_stick_to_a_partition_for_a_batch_and_then_go_on() -> None:
    partitioner = Partitioner(5)
    batches = []
    for _ in range(4):
        batches.append(partitioner.choose([None, None], 3))
        partitioner.next_batch()
    assert batches == [[2, 2], [0, 0], [1, 1], [2, 2]]


def test_keyless_batches_reach_every_partition(log: Log) -> None:
    log.create_topic("visits", partitions=3)
    for _ in range(3):
        log.append({"visits": numbered(range(10))})
    assert log.end_offsets("visits") == {0: 10, 1: 10, 2: 10}


def test_a_record_may_name_its_partition(log: Log) -> None:
    log.create_topic("visits", partitions=3)
    log.append({"visits": [ProducerRecord(b"key", b"v", partition=n) for n in (2, 0, 2)]})
    assert log.end_offsets("visits") == {0: 1, 1: 0, 2: 2}
