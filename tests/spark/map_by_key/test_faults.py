"""The same rows out as in, whatever happens to workers and tasks; what that costs in calls."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.faults import fail, first_time, kill, struck_within
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.core.serdes import Serdes
from thulawa.spark.application import Streams
from thulawa.spark.connectors.log_sink import log_sink
from thulawa.spark.map_by_key.api import map_by_key
from thulawa.streams import StreamsBuilder
from thulawa.streams.operator_options import Produced


@pytest.mark.parametrize("fault", [fail, kill], ids=["exception", "killed worker"])
def test_a_task_that_is_run_again_repeats_calls_but_no_rows(
    spark: SparkSession,
    tmp_path: Path,
    fault: Callable[[], None],
    record_property: Callable[[str, object], None],
) -> None:
    calls, struck = str(tmp_path / "calls"), str(tmp_path / "struck")

    async def unlucky(row: Any) -> int:
        with open(calls, "a", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 a short line
            file.write(f"{row.id}\n")
        if row.id == 1417 and first_time(struck):
            fault()
        return int(row.id)

    rows = spark.range(0, 3000, 1, 1).selectExpr("id", "id % 10 as visitor")
    mapping = map_by_key(unlucky, key="visitor", returns="seen long", keep=["id"])
    out = rows.transform(mapping).collect()
    assert sorted(out) == [(number, number) for number in range(3000)]
    made = Counter(Path(calls).read_text(encoding="ascii").split())
    record_property("repeated_calls", made.total() - 3000)
    assert len(made) == 3000
    assert made["1417"] == 2
    assert max(made.values()) == 2


def test_a_worker_that_is_killed_in_a_stream_leaves_no_trace_in_the_sink(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    calls, struck = str(tmp_path / "calls"), str(tmp_path / "struck")
    strike = kill

    async def unlucky(row: Any) -> bytes:
        with open(calls, "ab") as file:  # noqa: ASYNC230, PTH123 a short line
            file.write(row.value + b"\n")
        if row.value == b"211" and first_time(struck):
            strike()
        return bytes(row.value)

    with Log(f"file:{tmp_path}/topics") as log:
        for topic in ("visits", "seen"):
            log.create_topic(topic, partitions=2)
        with log.producer() as producer:
            for number in range(400):
                producer.send("visits", key=b"%d" % (number % 7), value=b"%d" % number)
        reader = spark.readStream.format("thulawa").option("subscribe", "visits")
        visits = reader.option("maxOffsetsPerTrigger", 150).load(log.address)
        mapping = map_by_key(unlucky, key="key", returns="value binary", keep=["key"])
        writer = log_sink(visits.transform(mapping), log.address, topic="seen")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        seen: dict[bytes | None, list[int]] = {}
        for partition in log.end_offsets("seen"):
            for record in log.read("seen", partition, 0):
                seen.setdefault(record.key, []).append(int(record.value or b""))
    assert seen == {b"%d" % key: list(range(key, 400, 7)) for key in range(7)}
    made = Counter(Path(calls).read_bytes().split())
    record_property("repeated_calls", made.total() - 400)
    assert len(made) == 400
    assert 0 < made.total() - 400 <= 150, "the batch under way is repeated, and no other"


@pytest.mark.parametrize("fault", [fail, kill], ids=["exception", "killed worker"])
def test_a_sink_does_not_take_rows_that_were_cut_off_for_all_there_are(
    spark: SparkSession, tmp_path: Path, fault: Callable[[], None]
) -> None:
    with Log(f"file:{tmp_path}/topics") as log:
        for topic in ("in", "out"):
            log.create_topic(topic)
        log.append({"in": [ProducerRecord(b"k", b"%0100d" % number) for number in range(30_000)]})
        rows = spark.readStream.format("thulawa").option("subscribe", "in").load(log.address)
        passing = struck_within(tmp_path / "struck", fault, 25_000)
        passed = rows.mapInArrow(passing, rows.schema).select("key", "value")
        writer = log_sink(passed, log.address, topic="out")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        values = [int(record.value or b"") for record in log.read("out", 0, 0)]
    assert values == list(range(30_000))
    assert (tmp_path / "struck").exists()


def test_outputs_of_a_batch_whose_state_was_refused_are_written_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    struck = str(tmp_path / "struck")

    def grown(_: str, value: int, total: int) -> Any:
        if value == 39 and first_time(struck):
            return object()  # no store takes that
        return total + 1

    builder = StreamsBuilder()
    totals = builder.stream("in").group_by_key().aggregate(lambda: 0, grown).to_stream()
    # far more than Spark sends to the sink at a time
    sent = totals.map_values(lambda total: str(total).encode() + b"\n" + os.urandom(2**20))
    sent.to("out", Produced(value_serde=Serdes.byte_array()))
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("in")
        log.append({"in": [ProducerRecord(b"k", b"%d" % number) for number in range(40)]})
        app = Streams(
            builder.build(),
            application_id="app",
            log=log.address,
            checkpoint=str(tmp_path / "checkpoint"),
            spark=spark,
        )
        with app:
            app.process_all_available("2 minutes")
        totals_sent = [
            int((record.value or b"").split(b"\n")[0]) for record in log.read("out", 0, 0)
        ]
    assert totals_sent == list(range(1, 41))
    assert Path(struck).exists()
