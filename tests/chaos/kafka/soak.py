"""A long run under kills: ``python -m tests.chaos.kafka.soak [--records N] [--every SECONDS]``.

Records arrive at a constant rate while a driver, a worker or the broker is killed in regular
intervals, at a crash point that is drawn. The output is compared as in the crash matrix, and no
kind of process may grow in memory after the first part of the run.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.harness import CLEAN, Row, parse, report, run_program, verdict_row, wait_until
from tests.chaos.kafka.crash_points import POINTS, STARTING_POINTS, STATE_POINTS, Point
from tests.chaos.kafka.job import JOBS
from tests.chaos.kafka.memory import KINDS, grown, is_flat, resident_mib
from tests.chaos.kafka.rig import Rig, chaos_broker

__all__ = ["main"]

_VICTIMS = ("worker", "worker", "worker", "driver", "broker")  # growth shows in long lives
_SAMPLE = 5.0
_TIMEOUT = 600.0


def main(arguments: Sequence[str]) -> int:
    """Run the soak; the exit status is 1 if output differs or memory grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kafka.soak", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=4_000.0, help="records per second")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--job", choices=JOBS, default="rank")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parse(parser, arguments)
    with chaos_broker() as broker, tempfile.TemporaryDirectory() as folder:
        batch = max(60, round(options.rate * 4))
        with Rig(options.job, broker, Path(folder), keys=options.keys, max_records=batch) as rig:
            sections = _sections(rig, options)
            return report("soak", sections, as_json=options.json, seed=options.seed)


def _sections(rig: Rig, options: argparse.Namespace) -> Iterator[tuple[str, str, list[Row]]]:
    samples = run(rig, options)
    yield "memory", "Resident MiB", samples
    rig.kill_driver()
    yield "result", "Soak", [_result(rig, samples, options.keys)]


def run(rig: Rig, options: argparse.Namespace) -> list[Row]:
    """Feed, kill and restart until all records are in the output; return samples of memory."""
    random, samples, kills = Random(options.seed), [], 0
    rig.ensure_running()
    rig.feed(options.keys)
    rig.await_output()  # the job runs, and its state has every key
    started, next_kill, next_sample = time.monotonic(), options.every, 0.0

    def sample(now: float) -> None:
        count = kills + rig.points.fired
        row = {"seconds": round(now), "out": rig.seen, "kills": count, **resident_mib(rig)}
        samples.append(row)

    def step() -> int:
        nonlocal kills, next_kill, next_sample
        now = time.monotonic() - started
        if now >= next_sample:
            sample(now)
            next_sample = now + _SAMPLE
        if now >= next_kill and rig.fed < options.records:
            kills += rig.points.fired
            rig.arm(*_draw(rig.job, random), random, passes=10)
            next_kill = now + options.every
        due = min(options.records - rig.fed, options.keys + round(now * options.rate) - rig.fed)
        if due > 0:
            rig.feed(due)
        rig.ensure_running()
        return rig.poll()

    wait_until(
        lambda: rig.fed >= options.records and rig.seen >= rig.fed,
        step,
        timeout=_TIMEOUT,
        state=rig.state,
        poll=0,
    )
    sample(time.monotonic() - started)
    return samples


def _draw(job: str, random: Random) -> tuple[Point, Any]:
    excluded = STARTING_POINTS if job == "rank" else STATE_POINTS
    points = [point for point in POINTS if point not in excluded]
    return random.choice(points), random.choice(_VICTIMS)


def _result(rig: Rig, samples: list[Row], keys: int) -> Row:
    row = verdict_row(
        rig.final_verdict(), job=rig.job, records=rig.fed, keys=keys,
        seconds=samples[-1]["seconds"], kills=samples[-1]["kills"],
        driver_starts=rig.driver_starts,
    )  # fmt: skip
    flat = is_flat(samples)
    return {
        **row,
        "clean": row["clean"] and flat and rig.verdict() == CLEAN,
        **{f"{kind}_growth_mib": growth for kind, growth in grown(samples).items()},
        **{f"{kind}_most_mib": max(one[kind] for one in samples) for kind in KINDS},
        "memory": "flat" if flat else "GREW",
    }


if __name__ == "__main__":
    run_program(main)
