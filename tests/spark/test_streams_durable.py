"""A repartition behind a function that may answer differently on a re-run is a topic."""

import time
from pathlib import Path
from typing import Any

import pytest

from thulawa.app import Streams
from thulawa.core.errors import QueryFailed
from thulawa.dsl import Materialized, StreamsBuilder
from thulawa.log import Log, ProducerRecord
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
