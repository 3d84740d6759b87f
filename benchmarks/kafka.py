"""Measure Thulawa beside its peers on Kafka: ``python -m benchmarks.kafka [--quick] [--json]``.

One broker (that of THULAWA_KAFKA, or one that is started), one partition, all systems in the same
run, one after the other for each cell. Each system is up and has processed a few records before its
clock starts. Output is looked at as a read-committed reader sees it, and read to its end
afterwards: whatever is missing, repeated or out of its key's order is in the row.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

import thulawa
from benchmarks import peers
from benchmarks.brokers import connected
from benchmarks.kafka_arms import CALLING, COUNTING, Arm, Place
from benchmarks.kafka_load import Watch, backlog, check, check_counts, least, watching
from benchmarks.kafka_paced import Arrived, arriving
from benchmarks.report import Column, Progress, Report, Row, figure, machine, percent
from benchmarks.sessions import QUIET
from benchmarks.workload import Keys
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics

__all__ = ["main"]

RATE = 215.0  # events a second, as in the paper
IN_FLIGHT = 1_000
_LEAST = 9.0  # seconds of arrivals: less shows no stall
_QUIET = 1.5  # seconds without anything new, after all should be there
_START = 180.0  # seconds for a system to come up on a busy machine
_RUN = f"bench-{uuid4().hex[:8]}"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Cell:
    """A saturated workload: calls of this mean, these keys, at most so many records a second."""

    mean: float
    keys: Keys
    fastest: float


SATURATED = (
    Cell(0.1, Keys("1,000", count=1_000), 10_000),
    Cell(0.01, Keys("1,000", count=1_000), 40_000),
    Cell(0.1, Keys("Zipf 1.0", zipf=1.0), 10_000),
    Cell(0.1, Keys("1", count=1), 10),
)
PAPER = (0.005, 0.02, 0.25)
COUNTED = (1_000, 100_000)
SECTIONS = ("paper", "saturated", "count")


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements share."""

    connection: Connection
    spark: Callable[[], SparkSession]
    folder: Path
    seconds: float
    records: int  # to count

    def place(self, mean: float = 0.0, max_records: int = 100_000) -> Place:
        """Make fresh topics and a folder for one run."""
        name = f"{_RUN}-{next(_numbers)}"
        place = Place(
            self.connection, name, self.folder / name, self.spark, mean, IN_FLIGHT, max_records
        )
        place.folder.mkdir()
        for topic in (place.source, place.output):
            Topics(self.connection).ensure(topic)
        return place


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all sections and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, fewer cells")
    parser.add_argument("--json", action="store_true", help="one object per row")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section only")
    parser.add_argument("--arm", action="append", help="measure this system only")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long a cell is to take")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is stopped then too
    seconds = options.seconds / (5 if options.quick else 1)
    records = 100_000 if options.quick else 1_000_000
    progress = Progress()
    report = Report("kafka", progress, as_json=options.json)
    about = machine(kafka="4.1.1", **peers.VERSIONS)
    report.section("machine", "Machine", [Column(name, name) for name in about], [about])
    sections = options.only or SECTIONS
    with _bench(seconds, records) as bench:
        if "paper" in sections:
            _paper(report, bench, PAPER[1:2] if options.quick else PAPER, options.arm, progress)
        if "saturated" in sections:
            cells = SATURATED[:2] if options.quick else SATURATED
            _saturated(report, bench, cells, options.arm, progress)
        if "count" in sections:
            keys = COUNTED[:1] if options.quick else COUNTED
            _count(report, bench, keys, options.arm, progress)


@contextmanager
def _bench(seconds: float, records: int) -> Iterator[Bench]:
    peers.build()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        connected(_RUN) as connection,
    ):
        # started when it is needed, and there from then on
        session = partial(thulawa.session, "bench-kafka", master="local[2]", settings=QUIET)
        try:
            yield Bench(connection, session, Path(folder), seconds, records)
        finally:
            if (spark := SparkSession.getActiveSession()) is not None:
                spark.stop()


def _paper(
    report: Report,
    bench: Bench,
    means: Sequence[float],
    only: Sequence[str] | None,
    progress: Progress,
) -> None:
    def rows() -> Iterator[Row]:
        for mean in means:
            for name, arm in _chosen(CALLING, only):
                progress("paper", f"{name}, {mean * 1000:g} ms")
                place = bench.place(mean, max_records=10_000)
                with arm(place) as alive, watching(place.connection, place.output) as watch:
                    first = _warm(place, watch, alive, _warm_up(name, mean))
                    seconds = max(_LEAST, bench.seconds)
                    arrived = arriving(place, alive, RATE, seconds, first)
                yield {"system": name, "latency_ms": mean * 1000} | _arrived_row(arrived)

    report.section(
        "paper",
        f"The paper's table: {RATE:g} events/s arriving, calls of the mean ± 50 %",
        [
            Column("system", "system"),
            Column("latency_ms", "ms", figure),
            Column("events_per_second", "events/s", figure),
            Column("p50_ms", "p50 ms", figure),
            Column("p99_ms", "p99 ms", figure),
            Column("longest_gap_ms", "longest gap ms", figure),
            Column("out_of_order", "out of order", figure),
        ],
        rows(),
        ["from when a record was due to when a read-committed reader had its result"],
    )


def _arrived_row(arrived: Arrived) -> Row:
    return {
        "events_per_second": arrived.rate,
        "p50_ms": arrived.percentile(0.5),
        "p99_ms": arrived.percentile(0.99),
        "longest_gap_ms": arrived.longest_gap * 1000,
        "out_of_order": arrived.out_of_order,
    }


def _saturated(
    report: Report,
    bench: Bench,
    cells: Sequence[Cell],
    only: Sequence[str] | None,
    progress: Progress,
) -> None:
    def rows() -> Iterator[Row]:
        for cell in cells:
            for name, arm in _chosen(CALLING, only):
                progress("saturated", f"{name}, {cell.mean * 1000:g} ms, {cell.keys.name} keys")
                yield _saturated_row(bench, cell, name, arm)

    report.section(
        "saturated",
        f"Saturated: a backlog, {IN_FLIGHT:,} in flight, calls of the mean ± 50 %",
        [
            Column("system", "system"),
            Column("latency_ms", "ms", figure),
            Column("keys", "keys"),
            Column("records", "records", figure),
            Column("events_per_second", "events/s", figure),
            Column("ceiling", "ceiling", figure),
            Column("percent_of_ceiling", "of it", percent),
            *_WRONG,
        ],
        rows(),
        ["the ceiling is that of the calls alone, each key in its order, for every system"],
    )


_WRONG = [
    Column("longest_gap_ms", "longest gap ms", figure),
    Column("missing", "missing", figure),
    Column("repeated", "repeated", figure),
    Column("out_of_order", "out of order", figure),
]


def _saturated_row(bench: Bench, cell: Cell, name: str, arm: Arm) -> Row:
    place = bench.place(cell.mean)
    rate = min(cell.keys.width(IN_FLIGHT) / cell.mean, cell.fastest)
    keys = cell.keys.draw(max(20, round(rate * bench.seconds)))
    ceiling = len(keys) / least(keys, cell.mean, IN_FLIGHT)
    if name == "kafka_streams":  # one at a time: more records would only take longer
        keys = keys[: max(20, round(bench.seconds / cell.mean))]
    with arm(place) as alive, watching(place.connection, place.output) as watch:
        first = _warm(place, watch, alive, _warm_up(name, cell.mean))
        began = backlog(place.connection, place.source, keys, first)
        _await(watch, alive, first + len(keys), 20 * bench.seconds + 60)
        took = watch.timeline.ended() - began
        gap = watch.timeline.longest_gap(began)
    checked = check(place.connection, place.output, first, len(keys))
    return {
        "system": name,
        "latency_ms": cell.mean * 1000,
        "keys": cell.keys.name,
        "records": len(keys),
        "events_per_second": checked.records / took,
        "ceiling": ceiling,
        "percent_of_ceiling": 100 * checked.records / took / ceiling,
        "longest_gap_ms": gap * 1000,
        "missing": checked.missing,
        "repeated": checked.repeated,
        "out_of_order": checked.out_of_order,
    }


def _count(
    report: Report,
    bench: Bench,
    counted: Sequence[int],
    only: Sequence[str] | None,
    progress: Progress,
) -> None:
    def rows() -> Iterator[Row]:
        for keys in counted:
            for name, arm in _chosen(COUNTING, only):
                progress("count", f"{name}, {keys:,} keys")
                yield _count_row(bench, keys, name, arm)

    report.section(
        "count",
        f"A count by key of {bench.records:,} records, every update written",
        [
            Column("system", "system"),
            Column("keys", "keys", figure),
            Column("records", "records", figure),
            Column("records_per_second", "records/s", figure),
            *_WRONG,
        ],
        rows(),
        ["thulawa and kafka_streams_eos are exactly once, kafka_streams at least once"],
    )


def _count_row(bench: Bench, keys: int, name: str, arm: Arm) -> Row:
    place = bench.place()
    with arm(place) as alive, watching(place.connection, place.output) as watch:
        first = _warm(place, watch, alive, 20_000)
        numbers = range(first, first + bench.records)
        began = backlog(place.connection, place.source, [n % keys for n in numbers], first)
        _await(watch, alive, numbers.stop, 600)
        took = watch.timeline.ended() - began
        gap = watch.timeline.longest_gap(began)
    checked = check_counts(place.connection, place.output, numbers.stop)
    return {
        "system": name,
        "keys": keys,
        "records": bench.records,
        "records_per_second": bench.records / took,
        "longest_gap_ms": gap * 1000,
        "missing": checked.missing,
        "repeated": checked.repeated,
        "out_of_order": checked.out_of_order,
    }


def _chosen(arms: dict[str, Arm], only: Sequence[str] | None) -> list[tuple[str, Arm]]:
    return [(name, arm) for name, arm in arms.items() if not only or name in only]


def _warm_up(name: str, mean: float) -> int:
    return round(1 / mean) if name == "kafka_streams" else 2_000


def _warm(place: Place, watch: Watch, alive: Callable[[], None], records: int) -> int:
    """Wait until a system runs and has processed a few records; give how many."""
    backlog(place.connection, place.source, [f"warm-{number}" for number in range(records)])
    _await(watch, alive, records, _START)
    return records


def _await(watch: Watch, alive: Callable[[], None], records: int, timeout: float) -> None:
    """Wait for so many records and then for silence: what ends a transaction counts as one too."""

    def there(end: int) -> bool:
        alive()
        return end >= records

    if not watch.until(there, timeout):
        raise TimeoutError(f"{watch.end():,} of {records:,} records after {timeout:.0f} s")
    quiet_since, last = time.monotonic(), watch.end()
    while time.monotonic() - quiet_since < _QUIET:
        time.sleep(0.02)
        if (end := watch.end()) != last:
            quiet_since, last = time.monotonic(), end


if __name__ == "__main__":
    main()
