"""What keeps something in its Python worker meets the same worker in each batch."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import thulawa
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.spark.application import Streams
from thulawa.spark.session.worker_pools import WorkerPoolSlot, dedicated_workers
from thulawa.streams import StreamsBuilder

BATCHES = 6


@pytest.fixture
def fresh(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """Give the session with none of the workers that tests before have left, idle, by twos."""
    environment = spark.sparkContext.environment
    environment["TEST"] = str(tmp_path)
    yield spark
    del environment["TEST"]


def filled(folder: Path) -> str:
    """Make a log with a topic of one record for each batch."""
    address = f"file:{folder}/topics"
    with Log(address) as log:
        log.create_topic("out")
        log.create_topic("in")
        log.append({"in": [ProducerRecord(b"k", b"0") for _ in range(BATCHES)]})
    return address


def results(address: str) -> list[bytes]:
    with Log(address) as log:
        return [
            value or b""
            for columns in log.read_columns("out", 0, 0, log.end_offsets("out")[0])
            for value in columns.values
        ]


async def worker(row: Any) -> bytes:
    del row
    return b"%d" % os.getpid()


def test_a_stage_keeps_its_worker_beside_a_source_and_a_sink(
    tmp_path: Path, fresh: SparkSession
) -> None:
    address = filled(tmp_path)
    builder = StreamsBuilder()
    stream = builder.stream("in").group_by_key()
    stream.aggregate(int, lambda _key, _value, _before: os.getpid()).to_stream().to("out")
    application = Streams(
        builder.build(),
        application_id="pids",
        log=address,
        checkpoint=str(tmp_path / "checkpoint"),
        spark=fresh,
        max_records=1,
    )
    with application:
        application.process_all_available()
    found = results(address)
    assert (len(found), len(set(found))) == (BATCHES, 1)


def test_map_by_key_keeps_its_worker_beside_a_source_and_a_sink(
    tmp_path: Path, fresh: SparkSession
) -> None:
    address = filled(tmp_path)
    reader = fresh.readStream.format("thulawa").option("subscribe", "in")
    rows = reader.option("maxOffsetsPerTrigger", 1).load(address)
    mapped = rows.transform(thulawa.map_by_key(worker, key="key", returns="value binary"))
    writer = thulawa.embedded.log_sink(mapped, address, topic="out").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    writer.start().awaitTermination()
    found = results(address)
    assert (len(found), len(set(found))) == (BATCHES, 1)


def test_the_environment_is_as_it_was(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.environment)
    with dedicated_workers(spark, "mine"):
        assert spark.sparkContext.environment != before
    assert spark.sparkContext.environment == before


def test_two_threads_have_workers_of_their_own_names() -> None:
    environment: dict[str, str] = {"OTHER": "1"}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment=environment))
    entered, left = Event(), Event()
    seen: list[dict[str, str]] = []

    def second() -> None:
        entered.set()
        with dedicated_workers(spark, "second"):
            left.wait(10)
            seen.append(dict(environment))

    with dedicated_workers(spark, "first"):
        thread = Thread(target=second)
        thread.start()
        assert entered.wait(10)
        time.sleep(0.05)  # it would be in by now
        seen.append(dict(environment))
    left.set()
    thread.join(10)
    assert [one["THULAWA_WORKERS"] for one in seen] == ["first", "second"]
    assert environment == {"OTHER": "1"}


def test_a_name_within_a_name_is_put_back() -> None:
    environment: dict[str, str] = {}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment=environment))
    with dedicated_workers(spark, "outer"):
        with dedicated_workers(spark, "inner"):
            pass
        assert environment == {"THULAWA_WORKERS": "outer"}
    assert environment == {}


def test_a_seat_that_was_left_is_another_s() -> None:
    first = WorkerPoolSlot()
    first.release()
    second = WorkerPoolSlot()
    first.release()
    third = WorkerPoolSlot()
    assert third.number != second.number
    second.release()
    third.release()


def test_a_seat_is_taken_once_and_again_when_it_is_left() -> None:
    slots = [WorkerPoolSlot() for _ in range(3)]
    numbers = [seat.number for seat in slots]
    assert len(set(numbers)) == len(numbers)
    slots[1].release()
    slots[1].release()
    another = WorkerPoolSlot()
    assert another.number == numbers[1]
    for seat in (slots[0], another, slots[2]):
        seat.release()
