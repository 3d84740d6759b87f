"""Files that are damaged, foreign, newer or out of reach: an error that says what to do."""

import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.brokers.embedded.helpers import Clock, database, keyed, numbered, values
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import DamagedLog, ForeignLog, LogBusy, LogError, OffsetOutOfRange


@pytest.fixture
def filled(log: Log) -> Log:
    log.create_topic("visits")
    log.append({"visits": [ProducerRecord(b"k", b"%d" % n * 100) for n in range(2000)]})
    log.close()
    return log


def change(log: Log, statement: str) -> None:
    with closing(sqlite3.connect(database(log))) as connection, connection:
        connection.execute(statement)


def test_a_file_that_is_no_database_is_foreign_and_left_as_it_is(filled: Log) -> None:
    database(filled).write_bytes(b"hello world" * 1000)
    with pytest.raises(ForeignLog, match=r"not a SQLite database.*another folder"):
        filled.topics()
    assert database(filled).read_bytes() == b"hello world" * 1000


def test_another_programs_database_is_foreign(filled: Log) -> None:
    database(filled).unlink()
    change(filled, "CREATE TABLE mine (a)")
    with pytest.raises(ForeignLog, match="not a Thulawa log"):
        filled.topics()


def test_an_empty_file_is_foreign(filled: Log) -> None:
    database(filled).write_bytes(b"")
    with pytest.raises(ForeignLog, match="not a Thulawa log"):
        filled.append({"visits": []})


def test_a_newer_format_asks_for_an_upgrade(filled: Log) -> None:
    change(filled, "PRAGMA user_version = 3")
    with pytest.raises(ForeignLog, match=r"format 3, this thulawa reads format 2.*upgrade"):
        filled.topics()


def test_a_log_of_the_format_before_is_migrated_with_its_markers(filled: Log) -> None:
    filled.append({"visits": []}, marker=("geo", 0), batch=4)
    filled.close()
    change(filled, "ALTER TABLE markers DROP COLUMN layout")
    change(filled, "PRAGMA user_version = 1")
    with Log(filled.address) as one, Log(filled.address) as another:
        assert one.last_batches("geo") == another.last_batches("geo") == {0: 4}
        assert one.append({"visits": []}, marker=("geo", 0), batch=4, layout="any").skipped
        assert not another.append({"visits": []}, marker=("geo", 0), batch=5, layout="any").skipped


@pytest.mark.parametrize("pointer", [b"", b"../other", b"log-x.sqlite", b"\xff\xfe"])
def test_a_pointer_that_leads_nowhere_is_foreign(filled: Log, pointer: bytes) -> None:
    (database(filled).parent / "CURRENT").write_bytes(pointer)
    for call in (filled.topics, lambda: filled.create_topic("visits")):
        with pytest.raises(ForeignLog, match="CURRENT"):
            call()


def test_a_folder_that_is_a_file_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "topics").write_text("mine")
    with pytest.raises(ForeignLog):
        Log(f"file:{tmp_path}/topics").topics()


def test_a_truncated_database_is_damaged(filled: Log) -> None:
    size = database(filled).stat().st_size
    with database(filled).open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(DamagedLog, match="restore the folder"):
        values(filled, "visits")


def test_a_flipped_bit_in_a_record_is_found_and_located(filled: Log) -> None:
    content = bytearray(database(filled).read_bytes())
    at = content.index(b"1234" * 20)
    content[at] ^= 1
    database(filled).write_bytes(content)
    with pytest.raises(DamagedLog, match=r"checksum \(topic visits, partition 0, offset 1000\)"):
        values(filled, "visits")
    assert len(list(filled.read("visits", 0, 0, 1000))) == 1000


def test_a_batch_that_somebody_wrote_is_refused(filled: Log) -> None:
    change(filled, "UPDATE batches SET body = x'00'")
    with pytest.raises(DamagedLog, match="cut off"):
        values(filled, "visits")


def test_a_damaged_batch_is_not_compacted_away(log: Log, clock: Clock) -> None:
    log.create_topic("table", compact=True)
    log.append({"table": keyed(("a", "1"), ("a", "2"))})
    change(log, "UPDATE batches SET body = x'00'")
    with pytest.raises(DamagedLog, match="topic table"):
        log.clean("table")
    assert log.describe("table").partitions[0].records == 2


def test_a_writer_that_waits_too_long_is_told_and_nothing_is_written(log: Log) -> None:
    log.create_topic("visits")
    with (
        closing(sqlite3.connect(database(log), isolation_level=None)) as other,
        Log(log.address, timeout=0.1) as impatient,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogBusy, match=r"locked by another process.*raise timeout"):
            impatient.append({"visits": numbered([1])})
        other.execute("ROLLBACK")
        assert impatient.append({"visits": numbered([2])}).offsets == {("visits", 0): range(1)}


def test_errors_can_be_pickled() -> None:
    error = OffsetOutOfRange("gone", topic="visits", partition=1, offset=5, start=7, end=9)
    other = LogError("message", topic="visits")
    for original in (error, other):
        copy = pickle.loads(pickle.dumps(original))  # noqa: S301 - made here
        assert (str(copy), vars(copy)) == (str(original), vars(original))
