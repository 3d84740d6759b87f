"""Kill a Streams application on the embedded log, and compare its output with a model."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.harness import parse, report, run_program
from tests.chaos.killing import Run
from tests.chaos.workload import Workload


def main(arguments: Sequence[str]) -> int:
    """Run the chaos; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep topics, checkpoint and log here")
    options = parse(parser, arguments)
    workload = Workload(records=options.records, keys=options.keys, seed=options.seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(folder=folder, workload=workload, kills=options.kills, progress=_print)
        sections = [("outputs", f"Outputs after {options.kills} kills", run.kill_drivers())]
        return report("chaos-streams", sections, as_json=options.json, **asdict(workload))


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    run_program(main)
