"""Making, describing and removing topics, and the address of a log."""

import os
import pickle
from pathlib import Path

import pytest

from tests.brokers.embedded.helpers import ask, database, keyed, values
from thulawa.brokers.embedded import Log, Retention
from thulawa.errors import ConfigurationError, TopicDiffers, UnknownTopic


def test_a_topic_is_described_as_it_was_made(log: Log) -> None:
    retention = Retention(seconds=60.0, bytes=1000, records=10, tombstones=5.0)
    made = log.create_topic("visits", partitions=3, retention=retention, compact=True)
    assert (made.name, made.retention, made.compact) == ("visits", retention, True)
    assert [partition.number for partition in made.partitions] == [0, 1, 2]
    assert log.describe("visits") == made


def test_making_a_topic_again_leaves_it_as_it_is(log: Log) -> None:
    first = log.create_topic("visits", partitions=2)
    log.append({"visits": keyed(("a", "1"))})
    again = log.create_topic("visits", partitions=2)
    assert again.id == first.id
    assert sum(partition.records for partition in again.partitions) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"partitions": 2},
        {"compact": True},
        {"retention": Retention(records=5)},
    ],
)
def test_making_it_again_with_other_settings_is_refused(log: Log, other: dict[str, int]) -> None:
    log.create_topic("visits")
    with pytest.raises(TopicDiffers, match=r"topic visits.*settings it has"):
        log.create_topic("visits", **other)  # type: ignore[arg-type]
    with Log(log.address, timeout=1) as neighbour:  # the refusal has let go of the lock
        neighbour.append({"visits": keyed(("a", "1"))})
    assert values(log, "visits") == [b"1"]


def test_topics_are_listed_sorted_and_a_folder_without_a_log_has_none(log: Log) -> None:
    assert log.topics() == []
    for name in ("b", "a", "c"):
        log.create_topic(name)
    assert log.topics() == ["a", "b", "c"]


def test_asking_for_topics_makes_no_folder(log: Log) -> None:
    log.topics()
    assert not Path(log.address.removeprefix("file:")).exists()


def test_an_unknown_topic_is_an_error_that_names_those_there_are(log: Log) -> None:
    with pytest.raises(UnknownTopic, match="no log in"):
        log.describe("visits")
    log.create_topic("clicks")
    for call in (log.describe, log.end_offsets, log.delete_topic, log.clean, log.consumer):
        with pytest.raises(UnknownTopic, match=r"there are: clicks .*create the topic"):
            call("visits")


@pytest.mark.parametrize("name", ["../x", "", ".", "a b", "a\0", "x" * 250])
def test_an_illegal_name_is_refused_everywhere(log: Log, name: str) -> None:
    log.create_topic("visits")
    for call in (log.create_topic, log.describe, log.delete_topic, log.consumer):
        with pytest.raises(ConfigurationError, match="topic name"):
            call(name)
    with pytest.raises(ConfigurationError, match="group name"):
        log.consumer("visits", group=name)
    with pytest.raises(ConfigurationError, match="writer name"):
        log.append({}, marker=(f"geo/{name}", 0), batch=0)


@pytest.mark.parametrize("partitions", [0, -1, 10_001])
def test_the_number_of_partitions_is_bounded(log: Log, partitions: int) -> None:
    with pytest.raises(ConfigurationError, match="partitions="):
        log.create_topic("visits", partitions=partitions)


@pytest.mark.parametrize("limit", [{"seconds": 0}, {"bytes": -1}, {"records": 0}])
def test_a_retention_of_nothing_is_refused(limit: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        Retention(**limit)


def test_a_deleted_topic_is_gone_with_its_records_and_positions(log: Log) -> None:
    log.create_topic("visits", partitions=2)
    log.append({"visits": keyed(*((str(n), "v") for n in range(5000)))})
    with log.consumer("visits", group="g") as consumer:
        consumer.poll()
        consumer.commit()
    log.delete_topic("visits")
    assert log.topics() == []
    for table in ("partitions", "batches", "commits", "doomed"):
        assert ask(log, f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608 - no user input


def test_a_topic_made_again_starts_from_nothing_and_has_another_id(log: Log) -> None:
    first = log.create_topic("visits")
    log.append({"visits": keyed(("a", "old"))})
    log.delete_topic("visits")
    assert log.create_topic("visits").id != first.id
    log.append({"visits": keyed(("a", "new"))})
    assert values(log, "visits") == [b"new"]


def test_a_consumer_of_a_deleted_topic_is_told_even_if_it_was_made_again(log: Log) -> None:
    log.create_topic("visits")
    with log.consumer("visits") as consumer:
        log.delete_topic("visits")
        log.create_topic("visits")
        for call in (consumer.poll, consumer.lag):
            with pytest.raises(UnknownTopic, match="deleted"):
                call()


def test_deleting_gives_space_back(log: Log) -> None:
    log.create_topic("visits")
    value = "v" * 10_000
    log.append({"visits": keyed(*(("k", value) for _ in range(3000)))})
    log.close()
    before = database(log).stat().st_size
    log.delete_topic("visits")
    log.close()
    assert before > 30_000_000
    assert database(log).stat().st_size < before / 2


@pytest.mark.parametrize("address", ["./topics", "kafka://host", "file:", "file:/", "file:///"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"file:\./topics"):
        Log(address)


def test_addresses_are_made_absolute_when_the_log_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log("file:./topics")
    os.chdir("/")
    assert log.address == f"file:{tmp_path}/topics"
    assert Log(f"file://{tmp_path}/topics").address == log.address


def test_a_pickled_log_opens_the_same_folder(log: Log) -> None:
    log.create_topic("visits")
    with pickle.loads(pickle.dumps(log)) as copy:  # noqa: S301 - made here
        copy.append({"visits": keyed(("a", "1"))})
    assert values(log, "visits") == [b"1"]


def test_a_log_that_was_removed_and_made_again_is_opened_anew(log: Log) -> None:
    log.create_topic("visits")
    log.append({"visits": keyed(("a", "old"))})
    folder = Path(log.address.removeprefix("file:"))
    for file in folder.iterdir():
        file.unlink()
    assert log.topics() == []
    with Log(log.address) as other:
        other.create_topic("visits")
        log.append({"visits": keyed(("a", "new"))})
        assert values(other, "visits") == [b"new"]
        log.close()
        assert values(other, "visits") == [b"new"]
