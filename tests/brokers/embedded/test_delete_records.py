"""Records below an offset are deleted; offsets stay what they are."""

from pathlib import Path

import pytest

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import OffsetOutOfRange, UnknownTopic


def offsets(log: Log, partition: int) -> list[int]:
    start = log.start_offsets("t")[partition]
    return [record.offset for record in log.read("t", partition, start)]


@pytest.mark.parametrize("before", [0, 1, 999, 1_000, 1_500, 2_500, 9_999])
def test_records_below_an_offset_are_gone_and_the_others_are_there(
    tmp_path: Path, before: int
) -> None:
    with Log(f"file:{tmp_path}") as log:
        log.create_topic("t", partitions=2)
        for partition in range(2):
            log.append({"t": [ProducerRecord(b"k", b"v", (), 1, partition)] * 2_500})
        log.delete_records("t", {0: before})
        left = min(before, 2_500)
        assert log.start_offsets("t") == {0: left, 1: 0}
        assert log.end_offsets("t") == {0: 2_500, 1: 2_500}
        assert offsets(log, 0) == list(range(left, 2_500))
        assert offsets(log, 1) == list(range(2_500))
        log.delete_records("t", {0: 0})  # what is gone does not come back
        assert log.start_offsets("t")[0] == left
        log.append({"t": [ProducerRecord(b"k", b"v", (), 1, 0)]})
        assert offsets(log, 0) == list(range(left, 2_501))


def test_deleted_records_cannot_be_read_and_free_their_space(tmp_path: Path) -> None:
    with Log(f"file:{tmp_path}") as log:
        log.create_topic("t")
        log.append({"t": [ProducerRecord(b"k", b"v", (), 1)] * 2_500})
        cleaned = log.delete_records("t", {0: 2_100})
        assert cleaned.records == 2_000
        with pytest.raises(OffsetOutOfRange):
            list(log.read("t", 0, 0))
        with pytest.raises(UnknownTopic):
            log.delete_records("t", {1: 5})
