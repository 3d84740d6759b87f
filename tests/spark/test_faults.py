"""The same rows out as in, whatever happens to workers and tasks; what that costs in calls."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from thulawa.log import Log
from thulawa.spark.mapping import map_by_key


def fail() -> None:
    raise OSError("once")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


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
        if row.id == 1417 and not os.path.exists(struck):  # noqa: ASYNC240, PTH110 once
            os.close(os.open(struck, os.O_CREAT))
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
        if row.value == b"211" and not os.path.exists(struck):  # noqa: ASYNC240, PTH110 once
            os.close(os.open(struck, os.O_CREAT))
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
        writer = visits.transform(mapping).writeStream.format("thulawa").option("topic", "seen")
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start(log.address).awaitTermination()
        seen: dict[bytes | None, list[int]] = {}
        for partition in log.end_offsets("seen"):
            for record in log.read("seen", partition, 0):
                seen.setdefault(record.key, []).append(int(record.value or b""))
    assert seen == {b"%d" % key: list(range(key, 400, 7)) for key in range(7)}
    made = Counter(Path(calls).read_bytes().split())
    record_property("repeated_calls", made.total() - 400)
    assert len(made) == 400
    assert 0 < made.total() - 400 <= 150, "the batch under way is repeated, and no other"
