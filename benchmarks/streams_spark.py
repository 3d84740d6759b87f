"""Measure stream programs on Spark: ``python -m benchmarks.streams_spark [--quick] [--json]``.

One task, one partition, the embedded log as source and sink, batches of 100,000 records, every
update written. Beside the counts, in the same run and over the same topic, Spark's own
``groupBy().count()`` in update mode, which gives a key once per batch, to the sink ``noop``: the
log's own takes appended rows only. A rate is that of whole
batches: Spark's own report of each, with planning, offset log, state commit and sink.

An application runs for days, its JVM compiles for its first half minute. So a rate is that of the
last ten batches of twenty; what the batches before them did, but for the first two, stands beside.
With a million keys the batches before are those in which the keys come for the first time.

Then each count is started again for one record more: the first batch of a task whose state is kept
and not in memory.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, judge, machine
from benchmarks.sessions import quiet_session
from benchmarks.streams import count, stateless
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.spark.application import Streams
from thulawa.streams import StreamsBuilder

__all__ = ["main"]

_BATCH = 100_000
_TO_REPORT = 30  # seconds at most: Spark reports on a batch after it is committed
_FIRST = 2  # batches that start workers and fill caches: they are in no rate


@dataclass(frozen=True, slots=True)
class Cell:
    """A program, its keys, and what it is to reach."""

    name: str
    build: Callable[[StreamsBuilder], Any]
    keys: int
    at_least: int
    counts: bool = True


CELLS = (
    Cell("count", count, 1_000, 120_000),
    Cell("count", count, 100_000, 100_000),
    Cell("count", count, 1_000_000, 100_000),
    Cell("filter, map_values, sink", stateless, 1_000, 150_000, counts=False),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all cells and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams_spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three batches of each, not ten")
    parser.add_argument("--json", action="store_true", help="one object per row")
    parser.add_argument("--arm", choices=("thulawa", "spark"), action="append")
    parser.add_argument("--cell", type=int, action="append", help="measure this one only, from 0")
    options = parser.parse_args(arguments)
    batches = 3 if options.quick else 10
    cells = [CELLS[number] for number in options.cell or range(len(CELLS))]
    progress = Progress()
    report = Report("streams_spark", progress, as_json=options.json)
    report.section("machine", "Machine", [Column(k, k) for k in machine()], [machine()])
    with quiet_session("bench-streams-spark") as spark:
        report.section(
            "programs",
            f"Stream programs on Spark, one task, batches of {_BATCH:,} records: {batches} after "
            f"the first {batches}",
            [
                Column("system", "system"),
                Column("program", "program"),
                Column("keys", "keys", figure),
                Column("records_per_second", "records/s", figure),
                Column("before", "records/s before", figure),
                Column("median_batch_ms", "batch ms", figure),
                Column("state_bytes", "state bytes/batch", figure),
                Column("restart_ms", "first batch after restart, ms", figure),
                TARGET,
            ],
            _rows(spark, cells, options.arm or ("thulawa", "spark"), batches, progress),
            [f"the first {_FIRST} batches are in no rate: they start workers and fill caches"],
        )


def _rows(
    spark: SparkSession,
    cells: Sequence[Cell],
    arms: Sequence[str],
    batches: int,
    progress: Progress,
) -> Iterator[Row]:
    for cell in cells:
        with tempfile.TemporaryDirectory() as folder:
            progress("streams_spark", f"{cell.name}, {cell.keys:,} keys")
            address = f"file:{folder}/topics"
            _fill(address, cell.keys, 2 * batches * _BATCH)
            if "thulawa" in arms:
                row = _measured(
                    cell, batches, *_thulawa(spark, cell, address, Path(folder), 2 * batches)
                )
                target = f"≥ {cell.at_least:,}"
                row = judge(row, "records_per_second", cell.at_least, target)
            if "spark" in arms and cell.counts:
                beside = _measured(cell, batches, *_spark(spark, address, Path(folder)))
            if "thulawa" in arms:
                if cell.counts:  # at last: it adds to the topic
                    row["restart_ms"] = _restarted(spark, cell, address, Path(folder))
                yield {"system": "thulawa"} | row
            if "spark" in arms and cell.counts:
                yield {"system": "spark"} | beside


def _fill(address: str, keys: int, count: int) -> None:
    """Write the input: each key in turn, so that every batch meets as many keys as it can."""
    with Log(address) as log:
        for topic in {"in", "out"} - set(log.topics()):
            log.create_topic(topic)
        for at in range(0, count, _BATCH):
            numbers = range(at, min(at + _BATCH, count))
            log.append(
                {
                    "in": [
                        ProducerRecord(b"key%d" % (n % keys), b"%d" % n, timestamp=n)
                        for n in numbers
                    ]
                }
            )


def _thulawa(
    spark: SparkSession, cell: Cell, address: str, folder: Path, batches: int
) -> tuple[list[dict[str, Any]], Path]:
    builder = StreamsBuilder()
    cell.build(builder)
    checkpoint = folder / "thulawa"
    with Streams(
        builder.build(),
        application_id="bench",
        log=address,
        checkpoint=str(checkpoint),
        spark=spark,
        max_records=_BATCH,
    ) as streams:
        streams.process_all_available()
        deadline = time.monotonic() + _TO_REPORT
        while len(done := _with_records(streams.progress())) < batches:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return done, checkpoint / "query-0" / "state"


def _restarted(spark: SparkSession, cell: Cell, address: str, folder: Path) -> int:
    """Send one record more to an application that is started again; give what its batch took."""
    _fill(address, 1, 1)
    (report,), _ = _thulawa(spark, cell, address, folder, 1)
    took: int = report["durationMs"]["triggerExecution"]
    return took


def _spark(spark: SparkSession, address: str, folder: Path) -> tuple[list[dict[str, Any]], Path]:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    source = spark.readStream.format("thulawa").option("subscribe", "in")
    rows = source.option("maxOffsetsPerTrigger", str(_BATCH)).load(address)
    counts = rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    writer = counts.writeStream.format("noop").outputMode("update")
    checkpoint = folder / "spark"
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    reports = [json.loads(one.json) for one in query.recentProgress]
    counted = [one | {"records": one["numInputRows"]} for one in reports]  # a row for each record
    return _with_records(counted), checkpoint / "state"


def _with_records(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in reports if one["records"]]


def _measured(cell: Cell, half: int, done: list[dict[str, Any]], state: Path) -> Row:
    """Rate whole batches: the second half of them, and those before."""
    if len(done) != 2 * half:
        raise RuntimeError(f"Spark reports on {len(done)} batches where {2 * half} were run")
    times = [one["durationMs"]["triggerExecution"] for one in done[half:]]
    size = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    return {
        "program": cell.name,
        "keys": cell.keys,
        "records_per_second": _rate(done[half:]),
        "before": _rate(done[_FIRST:half]),
        "median_batch_ms": median(times),
        "state_bytes": size / len(done) if cell.counts else None,
    }


def _rate(reports: list[dict[str, Any]]) -> float:
    took: float = sum(one["durationMs"]["triggerExecution"] for one in reports)
    rows: float = sum(one["records"] for one in reports)
    return 1000 * rows / took


if __name__ == "__main__":
    main()
