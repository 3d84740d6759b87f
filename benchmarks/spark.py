"""Measure `map_by_key` on Spark: ``python -m benchmarks.spark [--quick] [--json]``.

Whole streaming queries over one partition: from ``start()`` to the end of the query, with
planning, offset log, commit log and the wait for the last calls. Beside each, in the same run
and over the same rows, Spark's own way to overlap calls: an Arrow-optimised Python UDF with
``spark.sql.execution.pythonUDF.arrow.concurrency.level``, which keeps no order of keys.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import thulawa
from benchmarks.memory import ALLOWED_GROWTH_MIB, resident
from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, judge, machine, percent
from benchmarks.sessions import quiet_session
from benchmarks.workload import Keys, Workload, workload

__all__ = ["main"]

_IN_FLIGHT = 1_000
_PATIENCE = 120  # seconds until a query counts as stuck; its row has no figures then
_LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
_SCHEMA = "id long, key long"
_MANY = 5_000_000
_SETTINGS = {
    "spark.sql.files.minPartitionNum": "1",  # else a file is read in as many parts as cores
    _LEVEL: str(_IN_FLIGHT),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured, and what it is to reach: a part of the ceiling, or rows a second."""

    keys: Keys
    latency: float
    fastest: int
    percent: float | None = None
    rate: int | None = None

    def judged(self, row: Row) -> Row:
        """Set the target beside a row."""
        if self.rate is not None:
            return judge(row, "rows_per_second", self.rate, f"≥ {self.rate:,}/s")
        assert self.percent is not None
        return judge(row, "percent_of_ceiling", self.percent, f"≥ {self.percent:g} %")


_THOUSAND = Keys("1,000", count=1_000)
CELLS = (
    Cell(_THOUSAND, 0.1, 10_000, percent=90),
    Cell(_THOUSAND, 0.01, 50_000, percent=50),
    Cell(Keys("Zipf 1.0", zipf=1.0), 0.1, 10_000, percent=90),
    Cell(Keys("1", count=1), 0.1, 10_000, percent=95),
    Cell(_THOUSAND, 0.0, 150_000, rate=150_000),
)

Arm = Callable[[DataFrame, float], DataFrame]


def thulawa_arm(rows: DataFrame, latency: float) -> DataFrame:
    """Call a coroutine function for each row, each key in order."""

    async def call(row: Any) -> tuple[int]:
        if latency:
            await asyncio.sleep(latency)
        return (row.id,)

    mapping = thulawa.map_by_key(
        call, key="key", returns="answer long", keep=["id"], in_flight=_IN_FLIGHT
    )
    return rows.transform(mapping)


def spark_arm(rows: DataFrame, latency: float) -> DataFrame:
    """Call a plain function for each row on as many threads as calls are allowed in flight."""

    def call(number: int) -> int:
        if latency:
            time.sleep(latency)
        return number

    function = f.udf(call, "long", useArrow=True)
    return rows.select("id", function("id").alias("answer"))


ARMS: dict[str, Arm] = {"thulawa": thulawa_arm, "spark_udf": spark_arm}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cells and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time for each cell")
    parser.add_argument("--json", action="store_true", help="one object per row")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long a cell is to take")
    parser.add_argument("--arm", choices=ARMS, action="append", help="measure this one only")
    parser.add_argument("--cell", type=int, action="append", help="measure this one only, from 0")
    parser.add_argument("--memory", action="store_true", help="a worker's memory, and that alone")
    options = parser.parse_args(arguments)
    seconds = options.seconds / (10 if options.quick else 1)
    cells = [CELLS[number] for number in options.cell or range(len(CELLS))]
    progress = Progress()
    report = Report("spark", progress, as_json=options.json)
    report.section("machine", "Machine", [Column(k, k) for k in machine()], [machine()])
    with quiet_session("bench-spark", _SETTINGS) as spark:
        if options.memory:
            report.section(
                "memory",
                f"Memory of a worker over one partition of {_MANY:,} rows",
                [
                    Column("rows", "rows", figure),
                    Column("seconds", "seconds", figure),
                    Column("rss_mib", "RSS MiB", figure),
                    Column("rss_growth_mib", "growth MiB", figure),
                    TARGET,
                ],
                [_memory(spark, progress)],
                ["RSS after the first tenth; growth from there to the highest value"],
            )
            return
        report.section(
            "queries",
            f"Whole streaming queries, one partition, {_IN_FLIGHT:,} in flight",
            [
                Column("system", "system"),
                Column("latency_ms", "ms", figure),
                Column("keys", "keys"),
                Column("rows", "rows", figure),
                Column("seconds", "seconds", figure),
                Column("rows_per_second", "rows/s", figure),
                Column("ceiling", "ceiling", figure),
                Column("percent_of_ceiling", "of it", percent),
                TARGET,
            ],
            _rows(spark, cells, options.arm or list(ARMS), seconds, progress),
            ["the ceiling is that of calls in key order, which spark_udf does not keep"],
        )


def _rows(
    spark: SparkSession,
    cells: Sequence[Cell],
    arms: Sequence[str],
    seconds: float,
    progress: Progress,
) -> Iterator[Row]:
    warm_up = Workload(range(10_000), 0.0, _IN_FLIGHT, 0)
    for arm in arms:
        progress("queries", f"warming up {arm}")
        _run(spark, ARMS[arm], warm_up)
    for cell in cells:
        load = workload(cell.keys, cell.latency, _IN_FLIGHT, seconds=seconds, fastest=cell.fastest)
        for arm in arms:
            progress("queries", f"{arm}, {cell.latency * 1000:g} ms, {cell.keys.name} keys")
            row = _row(arm, cell, load, _run(spark, ARMS[arm], load))
            yield cell.judged(row) if arm == "thulawa" and row["seconds"] else row


def _row(arm: str, cell: Cell, load: Workload, seconds: float | None) -> Row:
    rows, ceiling = len(load.keys), load.ceiling
    rate = None if seconds is None else rows / seconds
    return {
        "system": arm,
        "latency_ms": cell.latency * 1000,
        "keys": cell.keys.name,
        "rows": rows,
        "seconds": seconds,
        "rows_per_second": rate,
        "ceiling": ceiling,
        "percent_of_ceiling": 100 * rate / ceiling if rate and ceiling else None,
    }


def _memory(spark: SparkSession, progress: Progress) -> Row:
    """Send a batch of many rows through one worker, which says how much it holds."""
    every = _MANY // 100

    async def sample(row: Any) -> int | None:
        return resident() if row.id % every == 0 else None

    progress("memory", f"{_MANY:,} rows")
    rows = spark.range(0, _MANY, 1, 1).selectExpr("id", "id % 1000 as key", "uuid() as text")
    mapping = thulawa.map_by_key(sample, key="key", returns="rss long", keep=["id", "text"])
    begun = time.perf_counter()
    sampled = rows.transform(mapping).where("rss is not null").orderBy("id").collect()
    seconds = time.perf_counter() - begun
    mib = [row.rss / 2**20 for row in sampled]
    settled = mib[len(mib) // 10]
    growth = max(mib[len(mib) // 10 :]) - settled
    return {
        "rows": _MANY,
        "seconds": seconds,
        "rss_mib": settled,
        "rss_growth_mib": growth,
        "target": f"≤ {ALLOWED_GROWTH_MIB:g} MiB more",
        "met": growth <= ALLOWED_GROWTH_MIB,
    }


def _run(spark: SparkSession, arm: Arm, load: Workload) -> float | None:
    """Run a query over the rows; give how long it took, None where it did not end in time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        table = pa.table({"id": range(len(load.keys)), "key": list(load.keys)})
        pq.write_table(table, folder / "rows" / "0.parquet")
        rows = spark.readStream.schema(_SCHEMA).parquet(f"{folder}/rows")

        def run(batch: DataFrame, _: int) -> None:
            arm(batch, load.latency).write.format("noop").mode("overwrite").save()

        writer = (
            rows.writeStream.foreachBatch(run)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
        )
        begun = time.perf_counter()
        query = writer.start()
        ended = query.awaitTermination(_PATIENCE)
        seconds = time.perf_counter() - begun
        query.stop()
        if not ended:
            return None
        done = sum(progress["numInputRows"] for progress in query.recentProgress)
    if done != len(load.keys):
        raise RuntimeError(f"{done} rows of {len(load.keys)} went through")
    return seconds


if __name__ == "__main__":
    main()
