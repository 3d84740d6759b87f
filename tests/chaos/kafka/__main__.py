"""Run the crash matrix: ``python -m tests.chaos.kafka [--rounds 3] [--only WORD] [--seed N]``."""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.harness import parse, report, run_program
from tests.chaos.kafka.matrix import run, select
from tests.chaos.kafka.rig import chaos_broker


def main(arguments: Sequence[str]) -> int:
    """Run the cells; the exit status is 1 if one of them is not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="kills of each cell")
    parser.add_argument("--only", action="append", default=[], help="cells whose name has this")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parse(parser, arguments)
    cells = select(options.only)
    if not cells:
        parser.error(f"no cell has {options.only} in its name")
    with chaos_broker() as broker, tempfile.TemporaryDirectory() as folder:
        rows = run(cells, broker, Path(folder), rounds=options.rounds, seed=options.seed)
        sections = [("cells", "Crash matrix", rows)]
        return report("chaos", sections, as_json=options.json, seed=options.seed)


if __name__ == "__main__":
    run_program(main)
