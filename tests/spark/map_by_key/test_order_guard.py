"""Inputs that have a key's rows in several partitions, or out of order, are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from thulawa.brokers.embedded import Log
from thulawa.errors import ConfigurationError
from thulawa.spark.map_by_key.api import map_by_key

Made = Callable[[SparkSession, Path], DataFrame]


def same(row: Any) -> int:
    return int(row.key)


def mapped(df: DataFrame, **choices: Any) -> DataFrame:
    return df.transform(map_by_key(same, key="key", returns="seen long", **choices))


def numbers(spark: SparkSession, partitions: int) -> DataFrame:
    return spark.range(0, 60, 1, partitions).selectExpr("id", "id % 5 as key")


def files(spark: SparkSession, folder: Path, count: int = 3) -> DataFrame:
    numbers(spark, count).write.parquet(f"{folder}/files")
    return spark.read.parquet(f"{folder}/files")


def stream_of_files(spark: SparkSession, folder: Path) -> DataFrame:
    (folder / "files").mkdir()
    return spark.readStream.schema("id long, key long").parquet(f"{folder}/files")


def log(folder: Path) -> str:
    with Log(f"file:{folder}/topics") as made:
        made.create_topic("visits", partitions=2)
        return made.address


def stream_of_log(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("thulawa").option("subscribe", "visits").options(**options)
    return reader.load(log(folder))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda spark, _: numbers(spark, 3), "has 3 partitions.*repartition=True with order_by"),
        (files, r"partitions, and rows of a key in any of them; use repartition=True[^,]*, or"),
        (
            lambda spark, folder: files(spark, folder).coalesce(1),
            r"order of its own, which coalesce\(\) does not change; use repartition=True",
        ),
        (
            lambda spark, _: numbers(spark, 3).orderBy("id").coalesce(1),
            r"coalesce\(\) may join the partitions of a sort.*; use repartition=True",
        ),
        (lambda spark, _: numbers(spark, 3).orderBy("id"), "has several partitions"),
        (
            lambda spark, _: numbers(spark, 3).repartition(3, "id").sortWithinPartitions("id"),
            "several partitions",
        ),
        (lambda spark, _: numbers(spark, 3).repartition(3, "key"), "changes the order"),
        (lambda spark, _: numbers(spark, 1).union(numbers(spark, 2)), "has 3 partitions"),
        (stream_of_files, "a source of files.*inside foreachBatch"),
        (
            lambda spark, folder: stream_of_files(spark, folder).coalesce(1),
            "a source of files.*inside foreachBatch",
        ),
        (
            lambda spark, folder: stream_of_log(spark, folder).union(stream_of_log(spark, folder)),
            "a union has rows of a key in several partitions",
        ),
        (
            lambda spark, folder: stream_of_log(spark, folder, minPartitions=4),
            "option minPartitions splits a partition",
        ),
    ],
    ids=[
        "partitions", "files", "coalesced files", "sorted and coalesced",
        "sorted by another column", "hashed by another column", "hashed and not sorted", "union",
        "stream of files", "coalesced stream of files", "union of streams", "splitting option",
    ],
)  # fmt: skip
def test_what_may_break_the_order_of_a_key_is_refused_with_the_cure(
    spark: SparkSession, tmp_path: Path, made: Made, reason: str
) -> None:
    df = made(spark, tmp_path)
    with pytest.raises(ConfigurationError, match=f"same: .*{reason}"):
        mapped(df)
    assert mapped(df, order="none").columns == ["seen"]


@pytest.mark.parametrize(
    "made",
    [
        lambda spark, _: numbers(spark, 1),
        lambda spark, _: numbers(spark, 3).coalesce(1),
        lambda spark, folder: files(spark, folder).coalesce(1).sortWithinPartitions("id"),
        lambda spark, folder: files(spark, folder, 1),
        lambda spark, _: numbers(spark, 3).repartition(3, "key").sortWithinPartitions("id"),
        lambda spark, folder: (
            stream_of_log(spark, folder).union(stream_of_log(spark, folder)).coalesce(1)
        ),
        stream_of_log,
        lambda spark, folder: (
            spark.read.format("thulawa").option("subscribe", "visits").load(log(folder))
        ),
    ],
    ids=[
        "one partition",
        "coalesced",
        "coalesced and sorted files",
        "one file",
        "hashed and sorted",
        "coalesced union of streams",
        "stream",
        "topic",
    ],
)
def test_what_keeps_the_order_of_a_key_is_taken(
    spark: SparkSession, tmp_path: Path, made: Made
) -> None:
    assert mapped(made(spark, tmp_path)).columns == ["seen"]


def test_what_cannot_be_known_is_warned_of(spark: SparkSession) -> None:
    listed = spark.createDataFrame([(1, 1), (2, 2), (3, 1)], "id int, key int")
    with pytest.warns(UserWarning, match=r"same: it cannot be seen .* 2 partitions"):
        mapped(listed)
    with pytest.warns(UserWarning, match="the source 'rate' may not keep a key"):
        mapped(spark.readStream.format("rate").load().selectExpr("value as key"))


def test_a_stream_is_not_repartitioned(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="inside foreachBatch"):
        mapped(stream_of_files(spark, tmp_path), repartition=True, order_by="id")


@pytest.mark.parametrize("choices", [{}, {"repartition": True, "order_by": "id"}], ids=str)
def test_tasks_that_run_twice_at_a_time_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any]
) -> None:
    get = type(spark.conf).get

    def speculating(conf: Any, name: str, *default: Any) -> Any:
        return "true" if name == "spark.speculation" else get(conf, name, *default)

    monkeypatch.setattr(type(spark.conf), "get", speculating)  # a running context fixes it
    with pytest.raises(ConfigurationError, match=r"same: spark\.speculation .* switch it off"):
        mapped(numbers(spark, 1), **choices)


def echo(row: Any) -> tuple[int, int]:
    return row.id, row.key


def behind(df: DataFrame, **choices: Any) -> DataFrame:
    """Put another operator before the one that is asked for."""
    return df.transform(map_by_key(echo, returns="id long, key long", **choices))


@pytest.mark.parametrize(
    ("before", "choices", "reason"),
    [
        ({"key": "id"}, {}, r"passed each other in echo, which keeps the order by \['id'\]"),
        ({"key": "key", "order": "none"}, {}, "keeps no order; give that one emit='partition'"),
        ({"key": None, "unkeyed": "parallel"}, {}, "keeps no order"),
        ({"key": "key"}, {"order": "partition"}, r"the order by \['key'\]"),
        ({"key": ["id", "key"]}, {}, r"the order by \['id', 'key'\]"),
    ],
    ids=str,
)
def test_what_another_operator_may_have_put_out_of_order_is_refused(
    spark: SparkSession, before: dict[str, Any], choices: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"same: .*{reason}"):
        mapped(behind(numbers(spark, 1), **before).where("id > 0"), **choices)


@pytest.mark.parametrize(
    ("before", "choices"),
    [
        ({"key": "key"}, {}),
        ({"key": "id", "emit": "partition"}, {}),
        ({"key": "id", "order": "partition"}, {"order": "partition"}),
        ({"key": "id"}, {"order": "none"}),
        ({"key": "id"}, {"repartition": True, "order_by": "id"}),
    ],
    ids=str,
)
def test_operators_that_keep_each_other_s_order_may_follow_one_another(
    spark: SparkSession, before: dict[str, Any], choices: dict[str, Any]
) -> None:
    assert mapped(behind(numbers(spark, 1), **before), **choices).columns == ["seen"]


def test_two_operators_in_a_row_give_what_they_should(spark: SparkSession) -> None:
    rows = mapped(behind(numbers(spark, 1), key="key")).collect()
    assert [row.seen for row in rows].count(3) == 12


@pytest.mark.parametrize(
    "made",
    [
        lambda spark, _: numbers(spark, 1).groupBy("key").applyInArrow(len, "key long"),
        lambda spark, _: numbers(spark, 1).intersect(numbers(spark, 1)),
        lambda spark, _: numbers(spark, 1).hint("rebalance"),
        lambda spark, folder: (
            stream_of_log(spark, folder)
            .withWatermark("timestamp", "1 minute")
            .dropDuplicatesWithinWatermark(["key"])
        ),
    ],
    ids=["groups", "intersection", "rebalance", "deduplicated stream"],
)
def test_what_moves_rows_between_partitions_is_refused(
    spark: SparkSession, tmp_path: Path, made: Made
) -> None:
    with pytest.raises(ConfigurationError, match=r"same: .* changes the order of rows"):
        mapped(made(spark, tmp_path))
