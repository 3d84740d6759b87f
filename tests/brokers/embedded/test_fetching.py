"""Reading ranges of offsets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brokers.embedded.helpers import keyed, numbered
from thulawa.brokers.embedded import Log, ProducerRecord, Retention
from thulawa.brokers.embedded.fetching import fetch
from thulawa.errors import OffsetOutOfRange, UnknownTopic


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Two partitions: one of single-record batches and large ones, one with gaps."""
    log = Log(f"file:{tmp_path_factory.mktemp('reading')}", auto_clean=False)
    log.create_topic("dense")
    for start, end in ((0, 1), (1, 2), (2, 1502), (1502, 1503), (1503, 2500)):
        log.append({"dense": numbered(range(start, end))})
    log.create_topic("gaps", compact=True)
    for start in range(0, 2500, 500):
        log.append({"gaps": keyed(*((str(n % 700), str(n)) for n in range(start, start + 500)))})
    log.clean("gaps")
    return log


@settings(max_examples=200)
@given(st.integers(0, 2500), st.integers(0, 2500))
def test_a_range_gives_all_of_its_records_and_no_others(filled: Log, one: int, two: int) -> None:
    start, end = sorted((one, two))
    assert [r.offset for r in filled.read("dense", 0, start, end)] == list(range(start, end))
    kept = [offset for offset in range(1800, 2500) if start <= offset < end]
    assert [r.offset for r in filled.read("gaps", 0, start, end)] == kept


@given(st.integers(0, 2500), st.integers(0, 3000))
def test_a_limit_bounds_the_records(filled: Log, start: int, limit: int) -> None:
    found = [record.offset for record in filled.read("dense", 0, start, limit=limit)]
    assert found == list(range(start, 2500))[:limit]


def test_columns_hold_the_same_as_records(filled: Log) -> None:
    chunks = list(filled.read_columns("dense", 0, 10, 2000))
    offsets = [offset for chunk in chunks for offset in chunk.offsets]
    values = [value for chunk in chunks for value in chunk.values]
    assert offsets == list(range(10, 2000))
    assert values == [record.value for record in filled.read("dense", 0, 10, 2000)]
    assert max(map(len, chunks)) <= 1000


@pytest.mark.parametrize(("start", "end"), [(0, 2501), (2501, None), (-1, None)])
def test_a_range_beyond_the_log_is_an_error_and_not_less_data(
    filled: Log, start: int, end: int | None
) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"0 to 2500 .*topic dense, partition 0"):
        list(filled.read("dense", 0, start, end))


def test_a_range_that_retention_has_cut_is_an_error_and_not_less_data(log: Log) -> None:
    log.create_topic("visits", retention=Retention(records=10))
    for number in range(40):
        log.append({"visits": numbered([number])})
    reader = log.read("visits", 0, 0, 40)
    assert [next(reader).offset for _ in range(3)] == [0, 1, 2]
    log.clean("visits")
    with pytest.raises(OffsetOutOfRange, match="30 to 40"):
        list(reader)


def test_a_reader_sees_what_was_there_when_it_began(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": numbered(range(3))})
    reader = log.read("visits", 0, 0)
    assert next(reader).offset == 0
    log.append({"visits": numbered(range(3))})
    assert [record.offset for record in reader] == [1, 2]


def test_large_batches_are_read_a_few_at_a_time(log: Log) -> None:
    log.create_topic("visits")
    for _ in range(4):
        log.append({"visits": [ProducerRecord(b"k", bytes(6 * 1024 * 1024))]})
    fetched = fetch(log._database, log.topic("visits"), 0, 0)
    assert (len(fetched.chunks), fetched.next) == (2, 2)
    assert [len(chunk) for chunk in log.read_columns("visits", 0, 0)] == [1, 1, 1, 1]


def test_a_large_batch_before_the_range_is_no_obstacle(log: Log) -> None:
    log.create_topic("table", compact=True)
    for key, value in (("a", "x" * 9_000_000), ("b", "1"), ("b", "2")):
        log.append({"table": keyed((key, value))})
    log.clean("table")
    assert [record.offset for record in log.read("table", 0, 1)] == [2]


def test_an_unknown_partition_is_an_error(filled: Log) -> None:
    with pytest.raises(UnknownTopic, match="partitions are 0 to 0"):
        list(filled.read("dense", 1, 0))
