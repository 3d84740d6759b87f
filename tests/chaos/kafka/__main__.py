"""Run the crash matrix: ``python -m tests.chaos.kafka [--rounds 3] [--only WORD] [--seed N]``."""

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

from benchmarks.report import Column, Progress, Report, figure, machine
from tests.brokers.kafka.helpers import Verdict
from tests.chaos.kafka.matrix import chosen, run
from tests.chaos.kafka.rig import chaos_broker


def main(arguments: list[str]) -> int:
    """Run it; the exit status is 1 when a cell is not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="kills of each cell")
    parser.add_argument("--only", action="append", default=[], help="cells whose name holds this")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is random")
    parser.add_argument("--json", action="store_true", help="one object per row")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is stopped then too
    cells = chosen(options.only)
    if not cells:
        parser.error(f"no cell has {options.only} in its name")
    progress = Progress()
    report = Report("chaos", progress, as_json=options.json)
    about = machine(seed=str(options.seed))
    report.section("machine", "Machine", [Column(name, name) for name in about], [about])
    rows = []
    with chaos_broker() as broker, tempfile.TemporaryDirectory() as folder:
        for row in run(cells, broker, Path(folder), rounds=options.rounds, seed=options.seed):
            progress(f"{row['victim']}/{row['point']}", "clean" if row["clean"] else "NOT CLEAN")
            rows.append(row)
            if options.json:
                report.section("cells", "", [], [row])
    if not options.json:
        columns = [
            Column("job", "job"),
            Column("victim", "victim"),
            Column("point", "at"),
            Column("kills", "kills", figure),
            Column("driver_starts", "driver starts", figure),
            Column("longest_seconds", "longest s", figure),
            *(Column(field.name, field.name, figure) for field in fields(Verdict)),
        ]
        report.section("cells", "Crash matrix", columns, rows, [_sentence(rows)])
    return 0 if all(row["clean"] for row in rows) else 1


def _sentence(rows: list[dict[str, object]]) -> str:
    bad = [f"{row['victim']}/{row['point']}" for row in rows if not row["clean"]]
    return f"NOT CLEAN: {', '.join(bad)}" if bad else "clean: zero in each class"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
