"""Run conformance cases: ``python -m tests.conformance FILE...``."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.runner import Verdict, load, run


def main(arguments: list[str]) -> int:
    """Run all cases of the files; give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--on", choices=["driver", "spark", "continuous"], default="driver")
    parser.add_argument("--only", default="", help="run the cases whose id contains this")
    parser.add_argument(
        "--partitions", type=int, default=1, help="of the topics of cases that do not say"
    )
    parser.add_argument("--restart", action="store_true", help="new tasks after every input")
    parser.add_argument(
        "--shuffle-batches", type=int, default=0, metavar="SEED", help="how Spark's batches are cut"
    )
    parser.add_argument(
        "--slice", default="0/1", metavar="I/N", help="run the I-th of N parts, from 0"
    )
    parser.add_argument("--log", type=Path, help="add a line per case to this file as it ends")
    options = parser.parse_args(arguments)
    cases = [case for file in options.files for case in load(file) if options.only in case["id"]]
    first, step = map(int, options.slice.split("/"))
    cases = cases[first::step]
    if options.on == "spark":
        from tests.conformance.spark import run_on_spark  # noqa: PLC0415 needs Java

        verdicts = run_on_spark(cases, seed=options.shuffle_batches, partitions=options.partitions)
    elif options.on == "continuous":
        from tests.conformance.continuous import run_continuously  # noqa: PLC0415 as above

        verdicts = run_continuously(
            cases, seed=options.shuffle_batches, partitions=options.partitions
        )
    else:
        verdicts = (
            run(case, restart=options.restart, partitions=options.partitions) for case in cases
        )
    return _report(verdicts, len(cases), log=options.log)


def _report(verdicts: Iterator[Verdict], count: int, *, log: Path | None) -> int:
    """Show what fails as it is known; give the exit status."""
    passed = failed = 0
    for verdict in verdicts:
        passed += verdict.passed
        failed += not verdict.passed
        if not verdict.passed:
            _show(verdict)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{'passed' if verdict.passed else 'FAILED'} {verdict.case}\n")
    missing = count - passed - failed
    sys.stdout.write(f"{passed} passed, {failed} failed\n")
    return 1 if failed or missing else 0


def _show(verdict: Verdict) -> None:
    sys.stdout.write(f"--- {verdict.case}\n")
    if verdict.error:
        sys.stdout.write(f"{verdict.error}\n")
    for mark, expected, actual in verdict.rows:
        sys.stdout.write(f"{mark} {expected:<70} {actual}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
