"""Measure priorities: ``python -m benchmarks.priority [--quick] [--json] [--spark]``.

Three times as many records as can be processed, most of them not urgent: what the urgent ones
feel of it, without priorities and with them. What is measured, and how, is in benchmarks/README.md.
"""

import argparse
import asyncio
import runpy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isinf
from pathlib import Path
from typing import Any

from benchmarks.arrivals import ENOUGH, Load, Ran, overload, run
from benchmarks.report import TARGET, Column, Progress, Report, Row, figure, machine
from thulawa.engine import Bounds, Lanes
from thulawa.priority.buckets import Buckets
from thulawa.testing import simulate

__all__ = ["main"]

_TWO = Buckets({"Platinum": 70, "Gold": 30})
_ARMS = {
    "none": Lanes(),
    "weighted": Lanes.of(_TWO),
    "strict": Lanes.of(_TWO, strict=True),
}
_FEW = "weighted, intake full"
_EXAMPLE = Path(__file__).parents[1] / "examples" / "priority_orders.py"


@dataclass(frozen=True, slots=True)
class Plan:
    """So many calls at once, of so many seconds each, for so long."""

    in_flight: int
    latency: float
    seconds: float
    virtual: bool = False

    @property
    def capacity(self) -> float:
        """Calls a second at most."""
        return self.in_flight / self.latency

    def ran(self, load: Load, lanes: Lanes, bounds: Bounds = ENOUGH) -> Ran:
        """Run an engine over a load, and stop when no more comes."""
        main = partial(
            run,
            load,
            lanes,
            in_flight=self.in_flight,
            latency=self.latency,
            drain=False,
            bounds=bounds,
        )
        return simulate(lambda _: main(), seed=0) if self.virtual else asyncio.run(main())


_FULL = Plan(in_flight=50, latency=0.5, seconds=16)
_QUICK = Plan(in_flight=10, latency=0.1, seconds=2)


def overloaded(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Run Platinum alone, and with so much of Gold that there is three times too much."""
    alone, three_times = overload(plan.capacity, plan.seconds)
    progress("three times the capacity", "Platinum alone")
    unloaded = plan.ran(alone, _ARMS["weighted"]).latency("Platinum", 0.99)
    yield {"lanes": "Platinum alone", "platinum_p99_ms": 1_000 * unloaded, "times": 1.0}
    few = Bounds(records=2 * plan.in_flight)
    arms = [(name, lanes, ENOUGH) for name, lanes in _ARMS.items()]
    for name, lanes, bounds in (*arms, (_FEW, _ARMS["weighted"], few)):
        progress("three times the capacity", name)
        ran = plan.ran(three_times, lanes, bounds)
        loaded = ran.latency("Platinum", 0.99)
        row: Row = {
            "lanes": name,
            "platinum_p99_ms": _known(1_000 * loaded),
            "times": _known(loaded / unloaded),
            "platinum_rate": ran.rate("Platinum"),
            "gold_rate": ran.rate("Gold"),
            "gold_p99_ms": _known(1_000 * ran.latency("Gold", 0.99)),
        }
        if name in ("weighted", "strict"):
            held = loaded <= 1.5 * unloaded and row["gold_rate"] >= 0.3 * plan.capacity
            row |= {"target": "≤ 1.5 ×, Gold ≥ 30 %", "met": held}
        yield row


def shares(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Overload both, and starve one: what each gets."""
    capacity = plan.capacity
    progress("shares", "both overloaded")
    both = plan.ran(
        Load({"Platinum": 2 * capacity, "Gold": capacity}, plan.seconds), _ARMS["weighted"]
    )
    part = both.rate("Gold") / (both.rate("Gold") + both.rate("Platinum"))
    yield {
        "what": "weighted, both overloaded: Gold's part of what is done (30 %)",
        "value": 100 * part,
        "target": "29 – 31 %",
        "met": 0.29 <= part <= 0.31,
    }
    flood = Load({"Platinum": 1.5 * capacity, "Gold": 0.05 * capacity}, plan.seconds)
    progress("shares", "strict")
    strict = plan.ran(flood, _ARMS["strict"])
    late = [when for when in strict.called["Gold"] if plan.seconds / 4 < when < plan.seconds]
    yield {
        "what": "strict, Platinum floods: Gold called once there is a queue",
        "value": len(late),
        "target": "0",
        "met": not late,
    }
    progress("shares", "ageing")
    ageing = plan.seconds / 8
    full = Load({"Platinum": capacity, "Gold": 0.05 * capacity}, plan.seconds)
    aged = plan.ran(full, Lanes.of(_TWO, strict=True, ageing=ageing))
    pairs = zip(aged.due["Gold"], aged.called["Gold"], strict=True)
    waits = [called - due for due, called in pairs if due < plan.seconds - 2 * ageing]
    longest = max(waits, default=0.0)
    yield {
        "what": f"strict with ageing {ageing:g} s, Platinum fills all: Gold's longest wait (s)",
        "value": longest,
        "target": f"≤ {ageing:g} s and a call",
        "met": longest <= ageing + 1.5 * plan.latency + 0.1,
    }


def on_spark(seconds: float, progress: Progress) -> Iterator[Row]:
    """Run the example's three queries over the embedded log."""
    example = runpy.run_path(str(_EXAMPLE))
    spark = example["thulawa"].session("bench-priority")
    with tempfile.TemporaryDirectory() as name:
        place = example["Folder"](f"file:{name}/topics")
        for arm in example["ARMS"]:
            progress("on Spark", arm.name)
            found: dict[str, Any] = example["run"](spark, place, arm, seconds, Path(name))
            for bucket, one in found.items():
                yield {"lanes": arm.name, "bucket": bucket, **one}
    spark.stop()


def _known(value: float) -> float | None:
    return None if isinf(value) else value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all sections."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a second each, to try it out")
    parser.add_argument("--json", action="store_true", help="one object per row")
    parser.add_argument("--spark", action="store_true", help="whole queries as well")
    chosen = parser.parse_args(arguments)
    progress = Progress()
    report = Report("priority", progress, as_json=chosen.json)
    where = [Column(name, name) for name in machine()]
    report.section("machine", "Machine", where, [machine()])
    timed = _QUICK if chosen.quick else _FULL
    for plan in (replace(timed, virtual=True), timed):
        _report(plan, report, progress)
    if chosen.spark:
        report.section(
            "spark",
            "One query on the embedded log, three times what a trigger takes",
            [
                Column("lanes", "lanes"),
                Column("bucket", "bucket"),
                Column("shipped", "shipped", figure),
                Column("p50", "p50 s", figure),
                Column("p99", "p99 s", figure),
            ],
            on_spark(2.0 if chosen.quick else 40.0, progress),
        )


def _report(plan: Plan, report: Report, progress: Progress) -> None:
    when = "in virtual time" if plan.virtual else "on this machine"
    report.section(
        "overload, virtual" if plan.virtual else "overload",
        f"{when.capitalize()}: three times the capacity of {plan.capacity:,.0f} calls a second, "
        f"Platinum half of it ({plan.in_flight} at once, about {1_000 * plan.latency:g} ms each)",
        [
            Column("lanes", "lanes"),
            Column("platinum_p99_ms", "Platinum p99 ms", figure),
            Column("times", "× unloaded", figure),
            Column("platinum_rate", "Platinum/s", figure),
            Column("gold_rate", "Gold/s", figure),
            Column("gold_p99_ms", "Gold p99 ms", figure),
            TARGET,
        ],
        overloaded(plan, progress),
        [
            "A dash: some had not been done when the run was over.",
            f"All is taken in as it comes, but in the last line {2 * plan.in_flight} at a time.",
        ],
    )
    report.section(
        "shares, virtual" if plan.virtual else "shares",
        f"Shares, strictness, ageing, {when}",
        [Column("what", "what"), Column("value", "value", figure), TARGET],
        shares(plan, progress),
    )


if __name__ == "__main__":
    main()
