"""`split_errors`: every row in exactly one output, every call made once."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from thulawa.errors import ConfigurationError
from thulawa.spark.map_by_key.api import map_by_key
from thulawa.spark.map_by_key.error_split import split_errors

ORDERS = 400


def fickle(calls: Path) -> Callable[[Any], str]:
    """Return a function that answers every second call for an order differently."""

    def ask(order: Any) -> str:
        earlier = len(list(calls.glob(f"{order.id}-*")))
        (calls / f"{order.id}-{earlier}-{time.monotonic_ns()}").touch()
        if (order.id + earlier) % 3 == 0:
            raise ValueError(f"no to {order.id}")
        return "yes"

    return ask


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Return a folder with a file for each call."""
    folder = tmp_path / "calls"
    folder.mkdir()
    return folder


def tried(spark: SparkSession, calls: Path) -> DataFrame:
    orders = spark.range(0, ORDERS, 1, 3)
    return orders.transform(
        map_by_key(
            fickle(calls), key="id", returns="answer string", keep=["id"], order="none",
            on_error="column",
        )
    )  # fmt: skip


def assert_each_order_in_one_output(spark: SparkSession, folder: Path, calls: Path) -> None:
    found = [
        row.id
        for name in ("good", "dead")
        for row in spark.read.parquet(f"{folder}/{name}").collect()
    ]
    assert Counter(found) == dict.fromkeys(range(ORDERS), 1)
    assert len(list(calls.iterdir())) == ORDERS


def test_both_outputs_are_written_from_one_computation(
    spark: SparkSession, tmp_path: Path, calls: Path
) -> None:
    good, dead = split_errors(tried(spark, calls))
    good.write.parquet(f"{tmp_path}/good")
    dead.write.parquet(f"{tmp_path}/dead")
    assert_each_order_in_one_output(spark, tmp_path, calls)
    assert (good.count(), dead.count()) == (266, 134)


def test_a_streaming_dataframe_is_split_inside_foreach_batch(
    spark: SparkSession, tmp_path: Path, calls: Path
) -> None:
    spark.range(0, ORDERS, 1, 3).write.parquet(f"{tmp_path}/orders")
    orders = spark.readStream.schema("id long").parquet(f"{tmp_path}/orders")
    asking = map_by_key(
        fickle(calls), key="id", returns="answer string", keep=["id"], order="none",
        on_error="column",
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"streaming .* inside foreachBatch"):
        split_errors(orders.transform(asking))

    def write(batch: DataFrame, _: int) -> None:
        with split_errors(batch.transform(asking)) as (good, dead):
            good.write.mode("append").parquet(f"{tmp_path}/good")
            dead.write.mode("append").parquet(f"{tmp_path}/dead")

    writer = orders.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
    assert_each_order_in_one_output(spark, tmp_path, calls)


def test_rows_that_were_released_are_not_computed_again(spark: SparkSession, calls: Path) -> None:
    with split_errors(tried(spark, calls)) as split:
        assert split.good.count() + split.dead.count() == ORDERS
    with pytest.raises(Py4JJavaError, match=r"(?i)checkpoint block"):
        split.dead.count()
    assert len(list(calls.iterdir())) == ORDERS


def test_an_operator_behind_the_split_knows_the_order_of_the_one_before(
    spark: SparkSession, calls: Path
) -> None:
    first = map_by_key(
        fickle(calls), key="id", returns="answer string", keep=["id"], on_error="column"
    )
    good, _ = split_errors(spark.range(0, 9, 1, 1).transform(first))

    def again(row: Any) -> int:
        return int(row.id)

    with pytest.raises(ConfigurationError, match=r"passed each other in .*ask.*\['id'\]"):
        good.transform(map_by_key(again, key="answer", returns="number long"))
    assert good.transform(map_by_key(again, key="id", returns="number long")).count() == 6


def test_a_dataframe_without_the_column_of_errors_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"use map_by_key.*on_error='column'"):
        split_errors(spark.range(3))
