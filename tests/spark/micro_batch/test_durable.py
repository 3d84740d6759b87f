"""A repartition behind a function that may answer differently on a re-run is a topic."""

import time
from pathlib import Path
from typing import Any

import pytest

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import QueryFailed
from thulawa.spark.application import Streams
from thulawa.spark.micro_batch import runner as running
from thulawa.streams import Materialized, Repartitioned, StreamsBuilder
from thulawa.topology.topology import Topology


def address(folder: Path) -> str:
    return f"file:{folder / 'topics'}"


def produce(folder: Path, *values: bytes) -> None:
    with Log(address(folder)) as log:
        if "visits" not in log.topics():
            log.create_topic("visits", partitions=2)
            log.create_topic("out", partitions=2)
        records = [ProducerRecord(b"k", value, (), 1, 0) for value in values]
        log.append({"visits": records})


def keys(folder: Path) -> list[bytes | None]:
    with Log(address(folder)) as log:
        ends = log.end_offsets("out")
        return [record.key for number in ends for record in log.read("out", number, 0)]


def counted(folder: Path, *, waits: bool) -> Topology:
    """Count visits by a looked-up country; the task of US and bad fails until told otherwise."""

    def look_up(value: str) -> str:
        return (folder / "answer").read_text() if value == "visit" else value

    async def look_up_async(value: str) -> str:
        return look_up(value)

    def fail_after_the_other_task(key: str, count: int) -> int:
        if key == "bad" and not (folder / "well").exists():
            deadline = time.monotonic() + 20
            while not keys(folder) and time.monotonic() < deadline:
                time.sleep(0.05)
            raise ValueError("killed")
        return count

    builder = StreamsBuilder()
    visits = builder.stream("visits")
    found = visits.map_values_async(look_up_async) if waits else visits.map_values(look_up)
    counts = found.group_by(lambda key, country: country).count(Materialized.as_("counts"))
    counts.to_stream().map_values(fail_after_the_other_task, with_key=True).to("out")
    return builder.build()


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
def test_a_record_that_is_answered_otherwise_on_a_rerun_is_counted_under_one_key(
    spark: Any, tmp_path: Path, *, waits: bool
) -> None:
    def run() -> None:
        with Streams(
            counted(tmp_path, waits=waits), application_id="app", log=address(tmp_path), spark=spark
        ) as streams:
            streams.process_all_available("90 s")

    produce(tmp_path, b'"visit"', b'"bad"')  # US and bad share a partition, LK has another
    (tmp_path / "answer").write_text("LK")
    with pytest.raises(QueryFailed, match="killed"):
        run()
    assert keys(tmp_path) == [b"LK"]
    (tmp_path / "answer").write_text("US")
    (tmp_path / "well").touch()
    run()
    assert sorted(map(str, keys(tmp_path))) == ["b'LK'", "b'bad'"]


def test_waiting_for_all_there_is_waits_for_what_passes_several_topics(
    spark: Any, tmp_path: Path
) -> None:
    async def same(value: int) -> int:
        return value

    builder = StreamsBuilder()
    stream = builder.stream("visits").map_values_async(same)
    for step in range(3):
        again = stream.select_key(lambda key, value: str(value)).repartition(
            Repartitioned(name=f"step-{step}", partitions=3 - step)
        )
        stream = again.map_values_async(same)
    counts = stream.group_by_key().count(Materialized.as_("counts"))
    counts.to_stream().to("out")

    def run() -> None:
        with Streams(
            builder.build(),
            application_id="app",
            log=address(tmp_path),
            spark=spark,
            max_records=40,
        ) as streams:
            streams.process_all_available("110 s")
            assert sum(sum(ends.values()) for ends in streams.lag().values()) == 0

    produce(tmp_path, *(b"%d" % number for number in range(100)))
    run()
    assert len(keys(tmp_path)) == 100
    produce(tmp_path, *(b"%d" % number for number in range(50)))
    run()  # again, from its checkpoint
    assert len(keys(tmp_path)) == 150
    with Log(address(tmp_path)) as log:
        steps = {name: len(log.end_offsets(name)) for name in log.topics() if "step" in name}
    assert steps == {f"app-step-{step}-repartition": 3 - step for step in range(3)}


def test_what_was_read_is_deleted_from_a_repartition_topic(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_DELETION_SECONDS", 0.1)
    (tmp_path / "answer").write_text("LK")
    produce(tmp_path, *[b'"visit"'] * 30)
    topic = "app-counts-repartition"
    with Streams(
        counted(tmp_path, waits=False), application_id="app", log=address(tmp_path), spark=spark
    ) as streams:
        streams.process_all_available("90 s")
        deadline = time.monotonic() + 20
        with Log(address(tmp_path)) as log:
            while log.start_offsets(topic) != log.end_offsets(topic):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert sum(log.end_offsets(topic).values()) == 30
