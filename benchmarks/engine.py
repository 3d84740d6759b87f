"""Measure the engine: ``python -m benchmarks.engine [--quick] [--json] [--memory]``.

What is measured, and how, is in benchmarks/README.md.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.harness import Arm, Measured, alone, engine, loops, on_loop, rare_gc, sequential
from benchmarks.memory import SCENARIOS, memory_rows
from benchmarks.report import (
    TARGET,
    Column,
    Progress,
    Report,
    Row,
    figure,
    judge,
    machine,
    percent,
)
from benchmarks.scheduling import schedule
from benchmarks.workload import DISTRIBUTIONS, Keys, Workload, workload

__all__ = ["main"]

# What an engine on this kind of machine reaches at most: only used to size the runs.
_FASTEST = 70_000
_ROUNDS = 3  # arms that are compared take turns, so that a noisy moment hits all of them


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and for how long."""

    loop: str
    seconds: float
    latencies: tuple[float, ...]
    keys: tuple[Keys, ...]
    in_flight: tuple[int, ...]
    threads: tuple[int, ...]
    memory_share: float

    def workload(self, keys: Keys, latency: float, in_flight: int) -> Workload:
        """Make a workload that takes as long as planned."""
        return workload(keys, latency, in_flight, seconds=self.seconds, fastest=_FASTEST)


_BY_NAME = {keys.name: keys for keys in DISTRIBUTIONS}
_FULL = Plan(
    loop=loops()[0],
    seconds=1.0,
    latencies=(0.0, 0.005, 0.02, 0.1, 0.25),
    keys=DISTRIBUTIONS,
    in_flight=(100, 1_000, 10_000),
    threads=(64, 256),
    memory_share=0.01,
)
_QUICK = replace(
    _FULL,
    seconds=0.25,
    latencies=(0.0, 0.005, 0.1),
    keys=tuple(_BY_NAME[name] for name in ("1", "1,000", "Zipf 1.0")),
    in_flight=(1_000,),
    threads=(64,),
    memory_share=0.002,
)

Section = Callable[[Plan, Progress], Iterator[Row]]


def table(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run the engine over every combination of latency, keys and in flight."""
    for latency in plan.latencies:
        for in_flight in plan.in_flight:
            for keys in plan.keys:
                progress("table", f"{latency * 1000:g} ms, {keys.name} keys, {in_flight:,}")
                load = plan.workload(keys, latency, in_flight)
                measured = on_loop(plan.loop, partial(engine, load))
                yield _with_target(_row(load, keys.name, measured), keys)


def _row(load: Workload, keys: str, measured: Measured) -> Row:
    ceiling = load.ceiling
    return {
        "latency_ms": load.latency * 1000,
        "keys": keys,
        "in_flight": load.in_flight,
        "records": measured.records,
        "events_per_second": measured.rate,
        "ceiling": ceiling,
        "percent_of_ceiling": None if ceiling is None else 100 * measured.rate / ceiling,
        "peak_in_flight": measured.peak,
        "cpu_us_per_event": 1e6 * measured.cpu / measured.records,
    }


def _with_target(row: Row, keys: Keys) -> Row:
    if row["in_flight"] != 1_000:
        return row
    if row["latency_ms"] == 100:
        return judge(row, "percent_of_ceiling", 90, "≥ 90 %")
    if row["latency_ms"] == 5 and keys.name in ("1,000", "distinct"):
        return judge(row, "events_per_second", 60_000, "≥ 60,000/s")
    return row


def scheduling(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run the scheduler alone."""
    cells = [(1, 100), (100, 100), (1_000, 1_000), (None, 1_000), (None, 10_000)]
    records = max(1_000, round(200_000 * plan.seconds))
    rates: dict[tuple[int | None, int], list[float]] = {cell: [] for cell in cells}
    for turn in range(_ROUNDS):
        for cell in cells:
            progress("pure scheduling", f"turn {turn + 1} of {_ROUNDS}")
            rates[cell].append(schedule(*cell, records))
    for (keys, in_flight), measured in rates.items():
        row = {
            "keys": "distinct" if keys is None else f"{keys:,}",
            "in_flight": in_flight,
            "records": records,
            "events_per_second": median(measured),
            "best": max(measured),
        }
        wanted = (keys, in_flight) == (1_000, 1_000)
        yield judge(row, "events_per_second", 300_000, "≥ 300,000/s") if wanted else row


def single_key(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run one key, and a plain loop over the same calls."""
    for latency in plan.latencies:
        load = plan.workload(DISTRIBUTIONS[0], latency, 1_000)
        progress("single key", f"{latency * 1000:g} ms")
        ours, theirs = _in_turns(load, [(plan.loop, engine), (plan.loop, sequential)])
        row = {
            "latency_ms": latency * 1000,
            "events_per_second": ours.rate,
            "sequential": theirs.rate,
            "ratio": ours.rate / theirs.rate,
        }
        yield judge(row, "ratio", 0.99, "1.0 × (≥ 0.99)") if latency else row


def side_by_side(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run on every loop, with the engine and without any."""
    thousand = _BY_NAME["1,000"], 1_000
    cells = [(*thousand, latency) for latency in plan.latencies if latency in (0, 0.005, 0.1)]
    if 10_000 in plan.in_flight:
        cells.append((_BY_NAME["distinct"], 10_000, 0.25))
    arms: list[tuple[str, Arm]] = [
        (loop, arm) for loop in loops() for arm in (engine, rare_gc, alone)
    ]
    for keys, in_flight, latency in cells:
        progress("loops", f"{latency * 1000:g} ms, {in_flight:,} in flight")
        load = plan.workload(keys, latency, in_flight)
        for (loop, arm), measured in zip(arms, _in_turns(load, arms), strict=True):
            yield {"loop": loop, "arm": arm.__name__} | _row(load, keys.name, measured)


def threads(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run plain functions."""
    keys = _BY_NAME["1,000"]
    for count in plan.threads:
        for latency in plan.latencies:
            if latency <= 0.1:
                progress("threads", f"{latency * 1000:g} ms on {count}")
                load = plan.workload(keys, latency, count)
                measured = on_loop(plan.loop, partial(engine, load, threads=count))
                yield _row(load, keys.name, measured)


def memory(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run very many records and look at the memory."""
    progress.clear()
    scenarios = [scenario.scaled(plan.memory_share) for scenario in SCENARIOS]
    return memory_rows(scenarios, plan.loop)


def _in_turns(load: Workload, arms: Sequence[tuple[str, Arm]]) -> list[Measured]:
    """Run the arms in turns; give the median run of each."""
    runs: list[list[Measured]] = [[] for _ in arms]
    for _ in range(_ROUNDS):
        for (loop, arm), measured in zip(arms, runs, strict=True):
            measured.append(on_loop(loop, partial(arm, load)))
    return [sorted(measured, key=lambda run: run.rate)[len(measured) // 2] for measured in runs]


_RATE = Column("events_per_second", "events/s", figure)
_LATENCY = Column("latency_ms", "latency ms", "{:g}".format)
_KEYS = Column("keys", "keys")
_IN_FLIGHT = Column("in_flight", "in flight", figure)
_RECORDS = Column("records", "records", figure)
_CEILING = Column("ceiling", "ceiling", figure)
_PERCENT = Column("percent_of_ceiling", "of ceiling", percent)
_CPU = Column("cpu_us_per_event", "CPU µs", "{:.1f}".format)
_CELL = (_LATENCY, _KEYS, _IN_FLIGHT, _RECORDS, _RATE, _CEILING, _PERCENT)

_SECTIONS: dict[str, tuple[str, Section, Sequence[Column], Sequence[str]]] = {
    "scheduling": (
        "Pure scheduling: the scheduler alone, per second of CPU",
        scheduling,
        (_KEYS, _IN_FLIGHT, _RECORDS, _RATE, Column("best", "best", figure), TARGET),
        ("Completions are reported 64 at a time; median and best of three, arms in turns.",),
    ),
    "table": (
        "The engine: coroutine function, order by key",
        table,
        (*_CELL, Column("peak_in_flight", "peak", figure), _CPU, TARGET),
        (
            "Ceiling: min(keys, in flight) / latency; for Zipf (10,000 keys)",
            "records / max(n × latency, records × latency / in flight), where n is how often the",
            "most frequent key was drawn: its calls cannot overlap. The clock starts after the",
            "first min(keys, in flight) events, so that the ramp does not count; for Zipf it runs",
            "from start to end.",
            "Peak: calls that overlapped. CPU µs: of the process per event, calls included.",
        ),
    ),
    "single key": (
        "Single key: the engine against `for record: await function(record)`",
        single_key,
        (
            _LATENCY,
            _RATE,
            Column("sequential", "sequential", figure),
            Column("ratio", "ratio", "{:.3f} ×".format),
            TARGET,
        ),
        ("In turns, median of three.",),
    ),
    "loops": (
        "Event loops: the engine, and the same calls from as many tasks without any engine",
        side_by_side,
        (Column("loop", "loop"), Column("arm", "arm"), *_CELL, _CPU),
        (
            "In turns, median of three. alone: keeps no order and no bounds. rare_gc: the engine,",
            "with gc.set_threshold(50_000, 20, 20), as a host may do that owns its process.",
        ),
    ),
    "threads": (
        "Plain functions: `time.sleep` on threads",
        threads,
        (*_CELL, Column("peak_in_flight", "threads", figure), _CPU),
        (),
    ),
    "memory": (
        "Memory: a fresh process each, growth after the first tenth of the records",
        memory,
        (
            Column("scenario", "scenario"),
            _RECORDS,
            Column("keys", "keys", figure),
            _RATE,
            Column("retries", "retries", figure),
            Column("peak_held", "held", figure),
            Column("bound_held", "bound", figure),
            Column("peak_parked", "parked", figure),
            Column("peak_keys", "keys held", figure),
            Column("rss_mib", "RSS MiB", figure),
            Column("rss_growth_mib", "growth MiB", "{:.1f}".format),
            TARGET,
        ),
        ("Held counts everything taken in and not finished, parked records included.",),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sections asked for and print what they measured."""
    options = _parse(arguments)
    plan = _plan(options)
    progress = Progress()
    report = Report("engine", progress, as_json=options.json)
    about = machine(loop=plan.loop)
    report.section("machine", "Machine", [Column(name, name) for name in about], [about])
    for name, (title, section, columns, notes) in _SECTIONS.items():
        if name in (options.only or _SECTIONS):
            report.section(name, title, columns, section(plan, progress), notes)


def _plan(options: argparse.Namespace) -> Plan:
    plan = replace(_QUICK if options.quick else _FULL, loop=options.loop)
    if options.memory and not options.quick:
        plan = replace(plan, memory_share=1.0)
    if options.seconds is not None:
        plan = replace(plan, seconds=options.seconds)
    if options.latency:
        plan = replace(plan, latencies=tuple(latency / 1000 for latency in options.latency))
    return plan


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--quick", action="store_true", help="a few cells, under 30 seconds")
    parser.add_argument(
        "--memory", action="store_true", help="memory over 10 million records, some minutes more"
    )
    parser.add_argument("--loop", choices=loops(), default=loops()[0], help="the event loop")
    parser.add_argument(
        "--latency", type=float, action="append", metavar="MS", help="only calls of this latency"
    )
    parser.add_argument("--seconds", type=float, help="about how long each cell runs")
    parser.add_argument("--only", action="append", choices=_SECTIONS, help="one section")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
