"""Sinks that write exactly once: which plans they accept, and which checkpoints."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import ConfigurationError, StateError
from thulawa.spark.application import Streams
from thulawa.spark.connectors.log_sink import log_sink
from thulawa.spark.connectors.task_layout import task_layout
from thulawa.spark.map_by_key.api import flat_map_by_key, map_by_key
from thulawa.streams import Materialized, StreamsBuilder
from thulawa.topology.determinism import deterministic

Made = Callable[[DataFrame], DataFrame]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with Log(f"file:{tmp_path}/topics") as made:
        for topic in ("in", "out"):
            made.create_topic(topic, partitions=2)
        yield made


@pytest.fixture
def rows(spark: SparkSession, log: Log) -> DataFrame:
    return spark.readStream.format("thulawa").option("subscribe", "in").load(log.address)


def fill(log: Log, first: int, end: int) -> None:
    numbers = range(first, end)
    log.append({"in": [ProducerRecord(b"k%d" % (n % 7), b"%d" % n) for n in numbers]})


def table(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("a", 1)], "name string, seen int")


class Nothing(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        yield pd.DataFrame({"key": []})

    def close(self) -> None: ...


def same(batches: Any) -> Any:
    return batches


def files(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.readStream.text(str(Path(__file__).parent))


def filtered(rows: DataFrame) -> DataFrame:
    table(rows).createOrReplaceTempView("few")
    return rows.where("cast(key as string) in (select name from few)")


async def country_of(row: Any) -> str:
    await asyncio.sleep(0)
    return "LK"


@deterministic
async def letter_of(row: Any) -> str:
    return chr(row.key[0])


def answered(function: Any) -> Callable[[DataFrame], DataFrame]:
    return map_by_key(function, key="key", returns="country string", keep=["key"])


def named(rows: DataFrame) -> DataFrame:
    return rows.withColumn("name", f.col("key").cast("string"))


def sized(row: Any) -> int:
    return len(row.value)


async def asked(row: Any) -> int:
    return int(time.time())


@deterministic
async def declared(row: Any) -> int:
    return int(row.value)


def with_lengths(rows: DataFrame, function: Any) -> DataFrame:
    return rows.transform(map_by_key(function, key="key", returns="length int"))


@pytest.mark.parametrize(
    ("made", "layout"),
    [
        (lambda rows: rows.where("key is not null").select("key", "value"), "thulawa"),
        (lambda rows: rows.mapInArrow(same, rows.schema).alias("a"), "thulawa"),
        (lambda rows: rows.select("key", f.explode("headers").alias("h")), "thulawa"),
        (lambda rows: rows.sortWithinPartitions("key"), "thulawa"),
        (lambda rows: rows.coalesce(2).coalesce(1), "one"),
        (lambda rows: rows.repartition(1, "key"), "one"),
        (lambda rows: rows.repartition(3).groupBy("key").count(), "stateful"),
        (lambda rows: rows.coalesce(3).dropDuplicates(["key"]), "stateful"),
        (
            lambda rows: rows.groupBy("key").transformWithStateInPandas(
                Nothing(), "key binary", "append", "None"
            ),
            "stateful",
        ),
        (lambda rows: rows.join(rows.selectExpr("key as k"), f.expr("key = k")), "stateful"),
        (lambda rows: rows.transform(answered(country_of)), "thulawa"),
        (
            lambda rows: rows.transform(answered(letter_of)).groupBy("country").count(),
            "stateful",
        ),
        (
            lambda rows: rows.transform(answered(lambda row: row.key)).groupBy("country").count(),
            "stateful",
        ),
        (
            lambda rows: (
                rows.transform(answered(country_of)).groupBy("country").count().coalesce(1)
            ),
            "one",
        ),
        (lambda rows: with_lengths(rows, sized).dropDuplicates(["length"]), "stateful"),
        (lambda rows: with_lengths(rows, declared).groupBy("length").count(), "stateful"),
        (lambda rows: with_lengths(rows, asked).coalesce(1), "one"),
        (lambda rows: rows.union(rows.coalesce(1)), "union(thulawa,one)"),
        (lambda rows: named(rows).join(f.broadcast(table(rows)), "name", "left"), "thulawa"),
        (
            lambda rows: named(rows).join(f.broadcast(table(rows)).alias("t"), "name"),
            "thulawa",
        ),
        (lambda rows: rows.sparkSession.readStream.format("rate").load().coalesce(1), "one"),
    ],
)
def test_plans_whose_rows_stay_in_their_tasks_are_accepted(
    rows: DataFrame, made: Made, layout: str
) -> None:
    assert task_layout(made(rows)) == layout


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda rows: rows.coalesce(2), r"coalesce\(2\) may put.*maxPartitions"),
        (lambda rows: rows.repartition(3), "a repartition may.*to a topic by that key"),
        (lambda rows: rows.repartition("key"), "a repartition may"),
        (lambda rows: rows.repartition(3, "key").select("key"), "a repartition may"),
        (lambda rows: rows.repartitionByRange(3, "key"), "a repartition may"),
        (lambda rows: rows.hint("rebalance"), "a repartition may"),
        (lambda rows: rows.union(rows.coalesce(2)), r"coalesce\(2\) may"),
        (lambda rows: rows.groupBy("key").count().orderBy("key"), "the operator Sort may"),
        (filtered, "a subquery may"),
        (
            lambda rows: rows.transform(answered(country_of)).groupBy("country").count(),
            r"country_of, in front of Aggregate, may .*@thulawa\.deterministic",
        ),
        (
            lambda rows: rows.join(
                rows.transform(answered(country_of)).selectExpr("country"),
                f.expr("cast(key as string) = country"),
            ),
            "country_of, in front of Join, may",
        ),
        (
            lambda rows: rows.withColumn("k", f.rand()).coalesce(1).dropDuplicates(["k"]),
            "an expression in front of Deduplicate, such as rand.., may",
        ),
        (
            lambda rows: with_lengths(rows, asked).dropDuplicates(["length"]),
            r"asked, in front of Deduplicate, may .*@thulawa\.deterministic",
        ),
        (
            lambda rows: rows.mapInArrow(same, rows.schema).groupBy("key").count(),
            r"MapInArrow, in front of Aggregate, may .*to a topic",
        ),
        (
            lambda rows: rows.withColumn("n", f.rand()).groupBy("n").count(),
            "an expression in front of Aggregate, such as rand.., may",
        ),
        (
            lambda rows: (
                rows.groupBy("key")
                .transformWithStateInPandas(Nothing(), "key binary", "append", "None")
                .dropDuplicates(["key"])
            ),
            "TransformWithState.*, in front of Deduplicate, may",
        ),
        (
            lambda rows: rows.groupBy("key").applyInPandas(lambda one: one, rows.schema),
            "a function over groups may",
        ),
        (
            lambda rows: named(rows).join(table(rows), "name"),
            r"a join with a table may.*broadcast\(table\)",
        ),
        (
            lambda rows: table(rows).join(named(rows), "name", "right"),
            r"a join with a table may.*broadcast\(table\)",
        ),
        (
            lambda rows: rows.sparkSession.readStream.format("rate").load(),
            r"the source rate may.*coalesce\(1\)",
        ),
        (
            files,
            r"the source FileSource.* may.*coalesce\(1\)",
        ),
    ],
)
def test_plans_that_may_move_rows_between_tasks_are_refused_with_what_to_do(
    rows: DataFrame, made: Made, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){reason}"):
        task_layout(made(rows))


def test_the_format_alone_does_not_write_a_stream(
    rows: DataFrame, log: Log, tmp_path: Path
) -> None:
    fill(log, 0, 10)
    writer = rows.select("key", "value").writeStream.format("thulawa").option("topic", "out")
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"Write with thulawa\.log_sink"):
        writer.start(log.address).awaitTermination()


def copy(rows: DataFrame, log: Log, checkpoint: Path) -> None:
    writer = log_sink(rows.select("key", "value"), log.address, topic="out")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def written(log: Log) -> list[int]:
    parts = (log.read("out", number, 0) for number in (0, 1))
    return sorted(int(record.value or b"") for part in parts for record in part)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_query_does_not_start_from_an_older_checkpoint(
    rows: DataFrame, log: Log, tmp_path: Path, batches: int
) -> None:
    now, backup = tmp_path / "cp", tmp_path / "backup"
    fill(log, 0, 40)
    copy(rows, log, now)
    shutil.copytree(now, backup)
    for batch in range(batches):
        fill(log, 40 + 10 * batch, 50 + 10 * batch)
        copy(rows, log, now)
    shutil.rmtree(now)
    shutil.copytree(backup, now)
    end = 40 + 10 * batches
    fill(log, end, end + 30)  # would be part of a batch whose number is written
    with pytest.raises(StateError, match=r"checkpoint ends with batch 0: .*\n.*newest checkpoint"):
        copy(rows, log, now)
    assert written(log) == [*range(end)]


def without(checkpoint: Path, batch: int) -> None:
    """Remove the commit of a batch, as a driver that was killed before it leaves it."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_batch_that_is_run_again_is_skipped_by_the_same_tasks_and_refused_by_others(
    rows: DataFrame, log: Log, tmp_path: Path
) -> None:
    fill(log, 0, 40)
    copy(rows, log, tmp_path / "cp")
    without(tmp_path / "cp", 0)
    copy(rows.where("value is not null"), log, tmp_path / "cp")  # an edit that moves no row
    assert written(log) == [*range(40)]
    without(tmp_path / "cp", 0)
    # task 0 was killed before it had written: it would have the rows of task 1 among its own
    query = json.loads((tmp_path / "cp/metadata").read_text())["id"]
    log.forget((query, 0))
    with pytest.raises(StateError, match=r"task 1 .* 'thulawa', and runs it again with 'one'"):
        copy(rows.coalesce(1), log, tmp_path / "cp")
    log.append({}, marker=(query, 0), batch=0, layout="thulawa")
    copy(rows, log, tmp_path / "cp")  # what the error advises
    fill(log, 40, 50)
    copy(rows.coalesce(1), log, tmp_path / "cp")
    assert written(log) == [*range(50)]


@pytest.mark.parametrize("changelogs", [False, True])
def test_an_application_does_not_start_from_an_older_checkpoint_of_the_same_life(
    spark: SparkSession, log: Log, tmp_path: Path, *, changelogs: bool
) -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(Materialized.as_("seen")).to_stream().to("counts")
    now, backup = tmp_path / "cp", tmp_path / "backup"

    def run() -> None:
        streams = Streams(
            builder.build(),
            application_id="counter",
            log=log.address,
            checkpoint=str(now),
            spark=spark,
            changelogs=changelogs,
        )
        with streams:
            streams.process_all_available()

    fill(log, 0, 40)
    run()
    shutil.copytree(now, backup)
    fill(log, 40, 50)
    run()
    shutil.rmtree(now)
    shutil.copytree(backup, now)
    fill(log, 50, 80)
    ends = log.end_offsets("counts")
    with pytest.raises(StateError, match="the checkpoint is older than what its sink has written"):
        run()
    assert log.end_offsets("counts") == ends


def locate(row: Any) -> int:
    return len(row.value or b"")


def exploded(rows: DataFrame) -> DataFrame:
    return rows.select("topic", "partition", "offset", "value", f.explode("headers"))


def located(mapping: Any) -> Made:
    kept = ["topic", "partition", "offset", "value"]
    made: Made = mapping(locate, key="value", returns="length int", keep=kept, order="none")
    return made


def set_aside(rows: DataFrame, log: Log) -> DataFrame:
    place = f"{log.address}#out"
    kept: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": place, "order": "none"}
    return rows.transform(map_by_key(locate, key="value", returns="length int", **kept))


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.select("key", "value"),
        lambda rows: rows.where("key is not null").select("value", f.explode("headers")),
        lambda rows: rows.mapInArrow(same, rows.schema),  # has topic, partition and offset
        lambda rows: rows.repartition("key"),
        lambda rows: exploded(rows.repartition("key")),  # a task sees both rows, and says so
        lambda rows: rows.transform(located(map_by_key)).repartition("value"),
    ],
)
def test_dead_letters_are_accepted_where_a_row_is_known_again(
    rows: DataFrame, log: Log, made: Made
) -> None:
    assert set_aside(made(rows), log).columns == ["length"]


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.mapInArrow(same, rows.schema).select("value"),
        lambda rows: rows.where(f.rand() > 0).select("value"),
        lambda rows: rows.select("value").repartition(2),
        lambda rows: rows.union(rows),
        lambda rows: exploded(rows).repartition("value"),  # two rows of a record, in two tasks
        lambda rows: rows.mapInArrow(same, rows.schema).repartition("value"),
        lambda rows: rows.transform(located(flat_map_by_key)).repartition("value"),
        files,
    ],
)
def test_dead_letters_are_refused_where_a_row_may_not_be_known_again(
    rows: DataFrame, log: Log, made: Made
) -> None:
    with pytest.raises(ConfigurationError, match=r"locate: .*keep the columns topic, partition"):
        set_aside(made(rows), log)


def test_dead_letters_of_a_foreach_batch_need_rows_that_are_known_again(
    rows: DataFrame, log: Log, tmp_path: Path
) -> None:
    fill(log, 0, 10)

    def run(name: str, *columns: str) -> None:
        def lengths(batch: DataFrame, _: int) -> None:
            set_aside(batch.select(*columns), log).collect()

        writer = rows.writeStream.foreachBatch(lengths).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()

    run("known", "value", "topic", "partition", "offset")
    with pytest.raises(StreamingQueryException, match="keep the columns topic, partition and"):
        run("unknown", "value")
