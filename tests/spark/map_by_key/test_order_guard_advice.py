"""Each piece of advice in an error of the order guard is accepted, and then the order holds."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.errors import ConfigurationError
from thulawa.spark.map_by_key.api import map_by_key

ROWS, KEYS = 600, 7
Made = Callable[[SparkSession, Path], DataFrame]


async def unsteady(row: Any) -> int:
    await asyncio.sleep(int(row.id) * 7919 % 5 / 1000)
    return int(row.id)


def mapped(df: DataFrame, **choices: Any) -> DataFrame:
    return df.transform(
        map_by_key(unsteady, key="key", returns="seen long", keep=["key"], **choices)
    )


def assert_in_order(rows: Iterable[Any], per_key: int = ROWS // KEYS) -> None:
    seen = defaultdict(list)
    for row in rows:
        seen[row.key].append(row.seen)
    assert len(seen) == KEYS
    assert min(map(len, seen.values())) >= per_key
    assert [key for key, ids in seen.items() if ids != sorted(ids)] == []


def numbers(spark: SparkSession, _: Path) -> DataFrame:
    return spark.range(0, ROWS, 1, 3).selectExpr("id", f"id % {KEYS} as key")


def several_files(folder: Path) -> str:
    """Write files of which later ones are larger: Spark reads the largest first."""
    (folder / "files").mkdir()
    ends = [0, 20, 80, 200, 360, ROWS]
    for start, end in pairwise(ends):
        ids = list(range(start, end))
        table = pa.table({"id": ids, "key": [one % KEYS for one in ids]})
        pq.write_table(table, folder / "files" / f"{start:04}.parquet")
    return f"{folder}/files"


def files(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(several_files(folder))


def stream_of_files(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id long, key long").parquet(several_files(folder))


def topic(folder: Path) -> str:
    with Log(f"file:{folder}/topics") as log:
        log.create_topic("visits", partitions=3)
        for start in range(0, ROWS, 50):
            ids = range(start, start + 50)
            records = [ProducerRecord(b"%d" % (one % KEYS), b"%d" % one) for one in ids]
            log.append({"visits": records})
        return log.address


def stream_of_topic(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("thulawa").option("subscribe", "visits").options(**options)
    return reader.load(topic(folder)).selectExpr(
        "cast(cast(value as string) as long) as id",
        "cast(cast(key as string) as long) as key",
        "timestamp",
    )


def union_of_streams(spark: SparkSession, folder: Path) -> DataFrame:
    (folder / "other").mkdir()
    one = stream_of_topic(spark, folder)
    return one.union(stream_of_topic(spark, folder / "other").selectExpr(
        f"id + {ROWS} as id", "key", "timestamp"
    ))  # fmt: skip


def deduplicated_stream(spark: SparkSession, folder: Path) -> DataFrame:
    stream = stream_of_topic(spark, folder).withWatermark("timestamp", "1 minute")
    return stream.dropDuplicatesWithinWatermark(["id"])


def refusal(df: DataFrame) -> str:
    with pytest.raises(ConfigurationError) as refused:
        mapped(df)
    return str(refused.value)


def pieces(advice: str) -> list[str]:
    """Return the pieces of advice in an error, but for the last, to do without an order."""
    text, last = advice.split("; ", 1)[1].rsplit(", ", 1)
    assert last == "or order='none' if order does not matter"
    return re.split(r", (?![^()]*\))", text)


BATCH_ADVICE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "use repartition=True with order_by=…": lambda df: mapped(df, repartition=True, order_by="id"),
    "coalesce(1) for one partition": lambda df: mapped(df.coalesce(1)),
}


@pytest.mark.parametrize(
    "made",
    [
        numbers,
        files,
        lambda spark, folder: files(spark, folder).coalesce(1),
        lambda spark, folder: numbers(spark, folder).orderBy("id"),
        lambda spark, folder: numbers(spark, folder).orderBy("id").coalesce(1),
        lambda spark, folder: numbers(spark, folder).repartition(3, "key"),
        lambda spark, folder: numbers(spark, folder).union(numbers(spark, folder).where("id < 0")),
        lambda spark, folder: numbers(spark, folder).groupBy("id", "key").count(),
    ],
    ids=[
        "partitions", "files", "coalesced files", "sorted", "sorted and coalesced", "hashed",
        "union", "aggregated",
    ],
)  # fmt: skip
def test_the_advice_for_a_batch_keeps_the_order(
    spark: SparkSession, tmp_path: Path, made: Made
) -> None:
    df = made(spark, tmp_path)
    for piece in pieces(refusal(df)):
        assert_in_order(BATCH_ADVICE[piece](df).collect())


def in_batches(df: DataFrame, folder: Path) -> list[Any]:
    """Do what the advice for streams says; return the rows."""
    found: list[Any] = []
    mapping = map_by_key(
        unsteady, key="key", returns="seen long", keep=["key"], repartition=True, order_by="id"
    )

    def process(batch: DataFrame, _: int) -> None:
        found.extend(batch.transform(mapping).collect())

    writer = df.writeStream.foreachBatch(process).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    return found


def streamed(df: DataFrame, folder: Path) -> list[Any]:
    """Run a stream to its end; return the rows."""
    found: list[Any] = []
    writer = df.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    return found


@pytest.mark.parametrize(
    "made",
    [stream_of_files, deduplicated_stream, union_of_streams],
    ids=["files", "deduplicated", "union"],
)
def test_the_advice_for_a_stream_keeps_the_order(
    spark: SparkSession, tmp_path: Path, made: Made
) -> None:
    df = made(spark, tmp_path)
    for number, piece in enumerate(pieces(refusal(df))):
        folder = tmp_path / str(number)
        if piece == "call map_by_key(repartition=True, order_by=…) inside foreachBatch":
            assert_in_order(in_batches(df, folder))
        else:
            assert piece == "use coalesce(1) for one partition"
            rows = streamed(mapped(df.coalesce(1)), folder)
            assert_in_order([row for row in rows if row.seen < ROWS])
            assert_in_order([row for row in rows if row.seen >= ROWS])


def test_an_option_that_splits_partitions_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"minPartitions splits .*; leave it out"):
        mapped(stream_of_topic(spark, tmp_path, minPartitions=4))
    without = stream_of_topic(spark, tmp_path / "other")
    assert_in_order(streamed(mapped(without), tmp_path))


def test_an_operator_before_that_emits_in_partition_order_keeps_the_order_of_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def echo(row: Any) -> tuple[int, int]:
        await asyncio.sleep(row.id * 104729 % 7 / 1000)
        return row.id, row.key

    df = numbers(spark, tmp_path).coalesce(1)
    before = {"key": "id", "returns": "id long, key long"}
    with pytest.raises(ConfigurationError, match="; give that one emit='partition'"):
        mapped(df.transform(map_by_key(echo, **before)))  # type: ignore[arg-type]
    ordered = map_by_key(echo, **before, emit="partition")  # type: ignore[arg-type]
    assert_in_order(mapped(df.transform(ordered)).collect())


def test_a_batch_of_files_in_foreach_batch_is_refused_and_takes_the_advice(
    spark: SparkSession, tmp_path: Path
) -> None:
    refused = []

    def process(batch: DataFrame, _: int) -> None:
        for one in (batch, batch.coalesce(1)):
            refused.append(refusal(one))
            for piece in pieces(refused[-1]):
                assert_in_order(BATCH_ADVICE[piece](one).collect())

    stream = stream_of_files(spark, tmp_path)
    writer = stream.writeStream.foreachBatch(process).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
    assert len(refused) == 2
