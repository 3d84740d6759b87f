"""A long run under kills: ``python -m tests.chaos.kafka.soak [--records N] [--every SECONDS]``.

Records arrive at a rate while, every so many seconds, a driver, a worker or the broker is killed at
a point that is drawn. What comes out is judged as in the matrix, and memory is looked at: each
kind of process may have had its largest size early, but must not grow.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import Column, Progress, Report, figure, machine
from tests.brokers.kafka.helpers import CLEAN
from tests.chaos.kafka.job import JOBS
from tests.chaos.kafka.memory import KINDS, grown, is_flat, resident_mib
from tests.chaos.kafka.rig import Rig, Stuck, chaos_broker
from tests.chaos.kafka.traps import POINTS, STARTING_POINTS, STATE_POINTS, Point

__all__ = ["Soak", "main"]

_VICTIMS = ("worker", "worker", "worker", "driver", "broker")  # long lives show growth better
_SAMPLE = 5.0
_PATIENCE = 600.0


@dataclass(frozen=True, kw_only=True)
class Soak:
    """How much, how fast, and how often something dies."""

    records: int = 1_000_000
    keys: int = 10_000
    rate: float = 4_000.0
    every: float = 20.0
    seed: int = 0


def main(arguments: list[str]) -> int:
    """Run it; the exit status is 1 when something is lost, doubled, reordered, wrong or grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kafka.soak", description=__doc__)
    parser.add_argument("--records", type=int, default=Soak.records)
    parser.add_argument("--keys", type=int, default=Soak.keys)
    parser.add_argument("--rate", type=float, default=Soak.rate, help="records a second")
    parser.add_argument("--every", type=float, default=Soak.every, help="seconds between kills")
    parser.add_argument("--job", choices=JOBS, default="rank")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", action="store_true", help="one object per row")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is stopped then too
    soak = Soak(
        records=options.records, keys=options.keys, rate=options.rate, every=options.every,
        seed=options.seed,
    )  # fmt: skip
    report = Report("soak", Progress(), as_json=options.json)
    about = machine(seed=str(options.seed))
    report.section("machine", "Machine", [Column(name, name) for name in about], [about])
    with chaos_broker() as broker, tempfile.TemporaryDirectory() as folder:
        most = max(60, round(soak.rate * 4))
        with Rig(options.job, broker, Path(folder), keys=soak.keys, max_records=most) as rig:
            samples = list(run(rig, soak))
            rig.kill_driver()
            row = _result(rig, soak, samples)
    report.section("memory", "Resident MiB", _columns(samples[0]), samples)
    report.section("result", "Soak", _columns(row), [row])
    return 0 if row["clean"] and row["memory"] == "flat" else 1


def run(rig: Rig, soak: Soak) -> Iterator[dict[str, Any]]:
    """Feed, kill and mend until all is out; give what memory was, as it went."""
    random = Random(soak.seed)
    rig.mend()
    rig.feed(soak.keys)
    rig.await_output()  # it is up, and knows every key
    began = time.monotonic()
    next_kill, next_sample, kills, moved = soak.every, 0.0, 0, began
    while rig.fed < soak.records or rig.seen < rig.fed:
        now = time.monotonic() - began
        if now >= next_sample:
            yield {"seconds": round(now), "out": rig.seen, "kills": kills, **resident_mib(rig)}
            next_sample = now + _SAMPLE
        if now >= next_kill and rig.fed < soak.records:
            kills += rig.traps.sprung
            rig.arm(*_drawn(rig.job, random), random, passes=10)
            next_kill = now + soak.every
        due = min(soak.records - rig.fed, soak.keys + round(now * soak.rate) - rig.fed)
        if due > 0:
            rig.feed(due)
        rig.mend()
        if rig.poll():
            moved = time.monotonic()
        elif time.monotonic() - moved > _PATIENCE:
            raise Stuck(f"{rig.seen} of {rig.fed} records are out; see {rig.log}")
    kills += rig.traps.sprung
    yield {"seconds": round(time.monotonic() - began), "out": rig.seen, "kills": kills,
           **resident_mib(rig)}  # fmt: skip


def _drawn(job: str, random: Random) -> tuple[Point, Any]:
    stateful = [point for point in POINTS if point not in STARTING_POINTS]
    plain = [point for point in POINTS if point not in STATE_POINTS]
    return random.choice(stateful if job == "rank" else plain), random.choice(_VICTIMS)


def _result(rig: Rig, soak: Soak, samples: list[dict[str, Any]]) -> dict[str, Any]:
    verdict = rig.final_verdict()
    return {
        "job": rig.job,
        "records": rig.fed,
        "keys": soak.keys,
        "seconds": samples[-1]["seconds"],
        "kills": samples[-1]["kills"],
        "driver_starts": rig.driver_starts,
        **asdict(verdict),
        "clean": verdict == CLEAN and rig.verdict() == CLEAN,
        **{f"{kind}_growth_mib": growth for kind, growth in grown(samples).items()},
        **{f"{kind}_most_mib": max(one[kind] for one in samples) for kind in KINDS},
        "memory": "flat" if is_flat(samples) else "GREW",
    }


def _columns(row: dict[str, Any]) -> list[Column]:
    return [
        Column(name, name.replace("_", " "), str if isinstance(value, str | bool) else figure)
        for name, value in row.items()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
