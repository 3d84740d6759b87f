"""Kill an application over and over, and hold what it leaves against a model."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.killing import Run
from tests.chaos.world import World


def main(arguments: list[str]) -> int:
    """Make one run; give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep everything here, to look at")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so the application is ended too
    world = World(records=options.records, keys=options.keys, seed=options.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        problems = Run(folder=folder, world=world, kills=options.kills, say=_say).problems()
        _say("an older checkpoint is put back")
        again = Run(folder=folder / "older-checkpoint", world=world, kills=options.kills)
        again.folder.mkdir()
        problems += again.problems_after_an_older_checkpoint()
    for problem in problems:
        _say(problem)
    outcome = "not what the model says" if problems else "none lost, none twice"
    _say(
        f"{options.records:,} records, {options.keys:,} keys, {options.kills} kills, seed "
        f"{options.seed}, {time.monotonic() - began:.0f} s: {outcome}"
    )
    return 1 if problems else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
