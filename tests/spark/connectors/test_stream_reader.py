"""Which records a batch has, over restarts, edits and topics that change: without Spark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.brokers.embedded.topic_options import Retention
from thulawa.errors import StateError
from thulawa.spark.connectors.log_source import LogReader, OffsetRange
from thulawa.spark.connectors.offsets import NOTES, of_topics
from thulawa.spark.connectors.stream_reader import LogStreamReader

ALL = ReadAllAvailable()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        made.create_topic("a", partitions=2)
        made.create_topic("b", partitions=2)
        yield made


def fill(log: Log, topic: str, count: int, partition: int = 0) -> None:
    log.append(
        {topic: [ProducerRecord(None, b"%d" % n, partition=partition) for n in range(count)]}
    )


def reader(log: Log, topics: str, **options: Any) -> LogStreamReader:
    return LogStreamReader(
        LogReader.of({"path": log.address, "subscribe": topics, **options}), None
    )


def ranges(source: LogStreamReader, start: Any, end: Any) -> list[list[OffsetRange]]:
    start, end = json.loads(json.dumps([start, end]))  # as it comes back from Spark
    return [one.ranges for one in source.partitions(start, end)]


def told(source: LogStreamReader, start: Any, end: Any) -> list[tuple[str, int, bool]]:
    (first, *_) = source.partitions(start, end)
    return [(one.topic, one.partition, one.behind) for one in first.behind]


def test_a_first_batch_that_is_run_again_begins_where_it_began(log: Log) -> None:
    fill(log, "a", 5)
    first = reader(log, "a", startingOffsets="latest")
    start = first.initialOffset()
    fill(log, "a", 3)
    end = first.latestOffset(start, ALL)
    assert ranges(first, start, end) == [[OffsetRange("a", 0, 5, 8)]]
    fill(log, "a", 9)
    again = reader(log, "a", startingOffsets="latest")
    assert ranges(again, again.initialOffset(), end) == [[OffsetRange("a", 0, 5, 8)]]


def test_a_topic_that_is_added_begins_with_its_first_record_though_that_is_not_0(log: Log) -> None:
    fill(log, "a", 5)
    before = reader(log, "a")
    read = before.latestOffset(before.initialOffset(), ALL)
    log.create_topic("c", retention=Retention(records=10))
    for _ in range(5):
        fill(log, "c", 10)
        log.clean("c")
    first = log.start_offsets("c")[0]
    assert first > 0
    source = reader(log, "a,c")
    end = source.latestOffset(read, ALL)
    assert ranges(source, read, end) == [[OffsetRange("c", 0, first, 50)]]


def test_a_topic_that_leaves_is_no_longer_read_and_tasks_of_a_cut_off_batch_keep_their_numbers(
    log: Log,
) -> None:
    fill(log, "a", 5)
    fill(log, "b", 5)
    both = reader(log, "a,b")
    start = both.initialOffset()
    cut_off = both.latestOffset(start, ALL)
    alone = reader(log, "b")
    assert ranges(alone, start, cut_off) == [[], [OffsetRange("b", 0, 0, 5)]]
    fill(log, "b", 2)
    end = alone.latestOffset(cut_off, ALL)
    assert {*of_topics(end)} == {"b"}
    assert ranges(alone, cut_off, end) == [[OffsetRange("b", 0, 5, 7)]]


@pytest.mark.parametrize("records", [3, 5, 9])
def test_a_topic_that_is_deleted_and_created_again_is_refused(log: Log, records: int) -> None:
    fill(log, "a", 5)
    source = reader(log, "a")
    start = source.initialOffset()
    read = source.latestOffset(start, ALL)
    log.delete_topic("a")
    log.create_topic("a", partitions=2)
    fill(log, "a", records)
    with pytest.raises(StateError, match=r"'a' was deleted and created again since .* offset 5 "):
        source.latestOffset(read, ALL)
    with pytest.raises(StateError, match="deleted and created again"):
        reader(log, "a").partitions(start, read)  # a batch that was cut off


def test_offsets_of_sparks_connector_are_gone_on_from(log: Log) -> None:
    fill(log, "a", 5)
    read = {"a": {"0": 2, "1": 0}, "thulawa-padding": {"0": 0, "1": 0}}
    source = reader(log, "a")
    end = source.latestOffset(read, ALL)
    assert ranges(source, read, end) == [[OffsetRange("a", 0, 2, 5)]]
    with pytest.raises(StateError, match="was planned by Spark's Kafka connector"):
        reader(log, "a").partitions(read, {"a": {"0": 5, "1": 0}})


def test_without_new_records_there_is_no_new_offset(log: Log) -> None:
    fill(log, "a", 5)
    source = reader(log, "a")
    end = source.latestOffset(source.initialOffset(), ALL)
    assert source.latestOffset(end, ALL) == end
    log.create_topic("c")
    more = reader(log, "a,c")
    grown = more.latestOffset(end, ALL)
    assert more.latestOffset(grown, ALL) == grown


def test_tasks_are_told_of_partitions_that_have_more_and_when_these_are_read(log: Log) -> None:
    fill(log, "a", 5)
    fill(log, "b", 2)
    fill(log, "b", 9, partition=1)
    of = LogReader.of({"path": log.address, "subscribe": "a,b"})
    source = LogStreamReader(of, 4, ordered_groups=[{"a": (0,), "b": (0,)}])
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(4))
    assert end[NOTES]["more"] == {"a": ["0"], "b": ["0"]}, "nobody waits for b-1"
    assert told(source, start, end) == [("a", 0, True), ("b", 0, True)]
    after = source.latestOffset(end, ReadMaxRows(9))
    assert "more" not in after[NOTES]
    again = LogStreamReader(of, 4)  # what was noted counts
    assert told(again, end, after) == [("a", 0, False), ("b", 0, False)]
