"""Measure stream programs in the test driver: ``python -m benchmarks.streams [--quick] [--json]``.

One task, one partition, records made beforehand, text keys and JSON values: what is measured is
the runtime, from the input topic to the output topic, every update going out.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, judge, machine
from thulawa.streams import JoinWindows, Record, StreamsBuilder, TimeWindows
from thulawa.testing import TopologyTestDriver

__all__ = ["main"]

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Program:
    """What is measured, and what it is to reach."""

    name: str
    build: Callable[[StreamsBuilder], Any]
    keys: int = 1_000
    at_least: int | None = None


def stateless(builder: StreamsBuilder) -> None:
    """Filter, map and write."""
    stream = builder.stream("in").filter(lambda _, value: value % 10 != 0)
    stream.map_values(lambda value: value + 1).to("out")


def count(builder: StreamsBuilder) -> None:
    """Count per key, every update out."""
    builder.stream("in").group_by_key().count().to_stream().to("out")


def windowed_count(builder: StreamsBuilder) -> None:
    """Count per key and minute, every update out."""
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of("1 minute"))
    windows.count().to_stream().to("out")


def rekeyed_count(builder: StreamsBuilder) -> None:
    """Count by another key: a repartition between two tasks."""
    builder.stream("in").group_by(lambda _, value: str(value % 1_000)).count().to_stream().to("out")


def table_join(builder: StreamsBuilder) -> None:
    """Look every record up in a table."""
    table = builder.table("rows")
    builder.stream("in").left_join(table, lambda value, row: (value, row)).to("out")


def stream_join(builder: StreamsBuilder) -> None:
    """Join with a stream that has nothing: what keeping records costs."""
    other = builder.stream("other")
    stream = builder.stream("in")
    stream.join(other, lambda a, b: (a, b), JoinWindows.of("1 s")).to("out")


PROGRAMS = [
    Program("filter, map_values, sink", stateless, at_least=200_000),
    Program("count, 1,000 keys", count, at_least=100_000),
    Program("count, 100,000 keys", count, keys=100_000, at_least=100_000),
    Program("count per minute", windowed_count),
    Program("count by another key", rekeyed_count),
    Program("stream-table join", table_join),
    Program("stream-stream join", stream_join),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all programs and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--json", action="store_true", help="one object per row")
    options = parser.parse_args(arguments)
    records = 20_000 if options.quick else 200_000
    progress = Progress()
    report = Report("streams", progress, as_json=options.json)
    report.section("machine", "Machine", [Column(k, k) for k in machine()], [machine()])
    report.section(
        "programs",
        f"Programs in the test driver, {records:,} records, median of {_ROUNDS}",
        [
            Column("program", "program"),
            Column("events_per_second", "records/s", figure),
            Column("best", "best", figure),
            TARGET,
        ],
        _rows(records, progress),
    )


def _rows(records: int, progress: Progress) -> Iterator[Row]:
    for program in PROGRAMS:
        progress("streams", program.name)
        rates = [_rate(program, records) for _ in range(_ROUNDS)]
        row: Row = {
            "program": program.name,
            "events_per_second": median(rates),
            "best": max(rates),
        }
        if program.at_least is None:
            yield row
        else:
            target = f"≥ {program.at_least:,}"
            yield judge(row, "events_per_second", program.at_least, target)


def _rate(program: Program, records: int) -> float:
    builder = StreamsBuilder()
    program.build(builder)
    inputs = [Record(f"key{n % program.keys}", n, n) for n in range(records)]
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        begun = time.perf_counter()
        topic.pipe_record_list(inputs)
        return records / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
