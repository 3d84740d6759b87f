"""Measure the embedded log: ``python -m benchmarks.log [--quick] [--json]``.

Records have a key of about 6 bytes (1,000 different ones) and a value of 100 bytes. Writing is
measured up to the confirmed commit, without waiting for the disk (``sync=False``, the default);
reading is from a file that was just written, so mostly from the page cache.
"""

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, judge, machine
from thulawa.brokers.embedded import Log, ProducerRecord

__all__ = ["main"]

_BATCH = 10_000
_ROUNDS = 3
_VALUE = bytes(range(100))
_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Records, and the wall and CPU time they took."""

    records: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Give records per second."""
        return self.records / self.seconds


def batch(size: int = _BATCH) -> list[ProducerRecord]:
    """Make the records of one batch."""
    return [
        ProducerRecord(b"key%d" % (n % 1000), _VALUE, (), 1_700_000_000_000) for n in range(size)
    ]


def measured(work: Callable[[], int]) -> Measured:
    """Run work that gives its number of records."""
    cpu, begun = time.process_time(), time.perf_counter()
    records = work()
    return Measured(records, time.perf_counter() - begun, time.process_time() - cpu)


# Writing.


def append(log: Log, records: int) -> int:
    """Append ready-made batches, as a sink does."""
    rows = batch()
    for _ in range(records // _BATCH):
        log.append({"visits": rows})
    return records


def produce(log: Log, records: int) -> int:
    """Send one record at a time, as an application does."""
    with log.producer() as producer:
        for number in range(records):
            producer.send("visits", key=b"key%d" % (number % 1000), value=_VALUE)
    return records


def flush_each(log: Log, records: int) -> int:
    """Flush after every record."""
    with log.producer() as producer:
        for number in range(records // 200):
            producer.send("visits", key=b"key%d" % (number % 1000), value=_VALUE)
            producer.flush()
    return records // 200


def write_from_processes(log: Log, records: int, processes: int = 2) -> int:
    """Append from several processes at once; starting them is counted."""
    share = records // processes
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(partial(append, log), [share] * processes))


# Reading.


def read_columns(log: Log, _: int) -> int:
    """Read chunks of columns, as a source does."""
    return sum(
        len(chunk)
        for partition in range(_PARTITIONS)
        for chunk in log.read_columns("visits", partition, 0)
    )


def read_records(log: Log, _: int) -> int:
    """Read record by record."""
    return sum(1 for partition in range(_PARTITIONS) for _ in log.read("visits", partition, 0))


def consume(log: Log, _: int) -> int:
    """Poll 500 at a time."""
    records = 0
    with log.consumer("visits") as consumer:
        while polled := consumer.poll(500):
            records += len(polled)
    return records


_ARMS: dict[str, tuple[str, Callable[[Log, int], int], float | None]] = {
    "append": ("write: append, batches of 10,000", append, 240_000),
    "produce": ("write: producer.send, one at a time", produce, None),
    "processes": ("write: append, two processes", write_from_processes, None),
    "flush": ("write: flush after each record", flush_each, None),
    "columns": ("read: columns", read_columns, 180_000),
    "records": ("read: records", read_records, 180_000),
    "consume": ("read: consumer.poll(500)", consume, 180_000),
}


def rates(records: int, progress: Progress) -> Iterator[Row]:
    """Measure every arm in turns, each round on a fresh log."""
    runs: dict[str, list[Measured]] = {name: [] for name in _ARMS}
    for turn in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder, Log(f"file:{folder}/topics") as log:
            log.create_topic("visits", partitions=_PARTITIONS)
            for name, (title, arm, _) in _ARMS.items():
                progress("rates", f"{title}, turn {turn + 1} of {_ROUNDS}")
                runs[name].append(measured(partial(arm, log, records)))
    for name, (title, _, target) in _ARMS.items():
        yield _row(name, title, runs[name], target)


def _row(name: str, title: str, runs: list[Measured], target: float | None) -> Row:
    row = {
        "arm": name,
        "what": title,
        "records": runs[0].records,
        "records_per_second": median(run.rate for run in runs),
        "best": max(run.rate for run in runs),
        # the work of other processes is not seen here
        "cpu_us_per_record": None
        if name == "processes"
        else 1e6 * median(run.cpu / run.records for run in runs),
    }
    if target is None:
        return row
    return judge(row, "records_per_second", target, f"≥ {target:,.0f}/s")


def layouts(records: int, progress: Progress) -> Iterator[Row]:
    """Compare a row for each record with packed batches, both in one transaction a batch."""
    for name, write in (("a row a record", _rows_alone), ("packed batches", _packed_alone)):
        progress("layouts", name)
        with tempfile.TemporaryDirectory() as folder:
            run = measured(partial(write, Path(folder), records))
        yield {
            "layout": name,
            "records": run.records,
            "records_per_second": run.rate,
            "cpu_us_per_record": 1e6 * run.cpu / run.records,
        }


def _rows_alone(folder: Path, records: int) -> int:
    connection = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE r (id INTEGER PRIMARY KEY, t INTEGER, k BLOB, v BLOB)")
    rows = batch()
    for start in range(0, records, _BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO r VALUES (?, ?, ?, ?)",
            ((start + n, row.timestamp, row.key, row.value) for n, row in enumerate(rows)),
        )
        connection.execute("COMMIT")
    connection.close()
    return records


def _packed_alone(folder: Path, records: int) -> int:
    with Log(f"file:{folder}") as log:
        log.create_topic("visits")
        return append(log, records)


_CPU = Column("cpu_us_per_record", "CPU µs", "{:.2f}".format)
_RECORDS = Column("records", "records", figure)
_RATE = Column("records_per_second", "records/s", figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    options = parser.parse_args(arguments)
    records = 100_000 if options.quick else 1_000_000
    progress = Progress()
    report = Report("log", progress, as_json=options.json)
    about = machine(sqlite=sqlite3.sqlite_version)
    report.section("machine", "Machine", [Column(name, name) for name in about], [about])
    report.section(
        "rates",
        "The log: 106-byte records, four partitions",
        (Column("what", "what"), _RECORDS, _RATE, Column("best", "best", figure), _CPU, TARGET),
        rates(records, progress),
        ("Median and best of three, arms in turns. CPU µs: of this process.",),
    )
    report.section(
        "layouts",
        "Why records are packed: the same records, one partition, one transaction per 10,000",
        (Column("layout", "layout"), _RECORDS, _RATE, _CPU),
        layouts(records, progress),
    )


if __name__ == "__main__":
    main()
