"""The crash matrix: every victim at every point, some rounds each, and a verdict for each cell.

Changes are cells of another kind: between two drivers something is put in the place of what the
first one left. The second must refuse it, and nothing may be lost or doubled, also once it is put
right.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

from tests.brokers.kafka.helpers import CLEAN, Verdict
from tests.chaos.kafka.job import ONE_TASK
from tests.chaos.kafka.rig import VICTIMS, Rig, Victim
from tests.chaos.kafka.traps import POINTS, STARTING_POINTS, STATE_POINTS, Point
from thulawa.dev.kafka_broker import Broker

__all__ = ["CELLS", "CHANGES", "AnyCell", "Cell", "Change", "chosen", "run"]

RECORDS = 240  # of a round: four batches


@dataclass(frozen=True, slots=True)
class Cell:
    """Who is killed where."""

    victim: Victim
    point: Point

    @property
    def name(self) -> str:
        """Name it as ``--only`` does."""
        return f"{self.victim}/{self.point}"

    @property
    def job(self) -> str:
        """Name the job that has this point."""
        return "rank" if self.point in STATE_POINTS else "map"


@dataclass(frozen=True, slots=True)
class Change:
    """What the next driver of a job finds changed."""

    what: Literal["older checkpoint", "other tasks", "recreated topic"]
    job: str

    @property
    def name(self) -> str:
        """Name it as ``--only`` does."""
        return f"{self.what}/{self.job}"


AnyCell: TypeAlias = Cell | Change
CELLS = tuple(Cell(victim, point) for point in POINTS for victim in VICTIMS)
CHANGES = (
    Change("older checkpoint", "map"),
    Change("other tasks", "map"),
    Change("older checkpoint", "rank"),
    # the last of their jobs: nothing goes on after them
    Change("recreated topic", "map"),
    Change("recreated topic", "rank"),
)
_OLDER = "the checkpoint is older than what its sink has written"
_OTHER_TASKS = "its rows may be in other tasks now"
_RECREATED = "was deleted and created again"


def chosen(words: Sequence[str]) -> list[AnyCell]:
    """Give the cells whose name holds one of the words; all without any."""
    cells: tuple[AnyCell, ...] = (*CELLS, *CHANGES)
    return [cell for cell in cells if not words or any(word in cell.name for word in words)]


def run(
    cells: Sequence[AnyCell], broker: Broker, folder: Path, *, rounds: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Run the cells, those of a job on one run of it; give a row for each, and one for each job."""
    for job in dict.fromkeys(cell.job for cell in cells):
        mine = [cell for cell in cells if cell.job == job]
        with Rig(job, broker, folder / job) as rig:
            rig.mend()
            rig.feed(RECORDS)
            rig.await_output()
            for cell in mine:
                random = Random(f"{seed} {cell.name}")
                if isinstance(cell, Change):
                    yield _change(rig, cell, rounds, random)
                else:
                    yield _cell(rig, cell, rounds, random)
            rig.kill_driver()
            yield _row(job, "–", "read again", rounds * len(mine), 0, 0.0, rig.final_verdict())


def _cell(rig: Rig, cell: Cell, rounds: int, random: Random) -> dict[str, Any]:
    starts, longest, before = rig.driver_starts, 0.0, rig.verdict()
    for _ in range(rounds):
        if cell.point in STARTING_POINTS:  # a worker reads all its state when it has none
            rig.kill_driver()
            if cell.point == "rebuild":
                rig.lose_checkpoint()
            rig.mend()
        rig.arm(cell.point, cell.victim, random, passes=1 if cell.point == "rebuild" else 3)
        rig.feed(RECORDS)
        rig.await_sprung()
        killed = time.monotonic()
        rig.await_output()
        longest = max(longest, time.monotonic() - killed)
    return _row(
        cell.job, cell.victim, cell.point, rounds, rig.driver_starts - starts, longest,
        _since(before, rig.verdict()),
    )  # fmt: skip


def _change(rig: Rig, cell: Change, rounds: int, random: Random) -> dict[str, Any]:
    starts, before, refused = rig.driver_starts, rig.verdict(), 0
    began = time.monotonic()
    for number in range(rounds):
        if cell.what == "recreated topic":
            refused += _recreated(rig, number)
            continue
        refused += _older(rig) if cell.what == "older checkpoint" else _other_tasks(rig, random)
        rig.mend()
        rig.await_output()
    longest = (time.monotonic() - began) / rounds
    verdict = _since(before, rig.verdict())
    row = _row(
        cell.job, cell.what, "refused", refused, rig.driver_starts - starts, longest, verdict
    )
    return row | {"clean": row["clean"] and refused == rounds}


def _older(rig: Rig) -> bool:
    """Put an older checkpoint back, with new records waiting; put the newest back afterwards."""
    rig.kill_driver()
    rig.copy_checkpoint("older")
    rig.mend()
    rig.feed(RECORDS)
    rig.await_output()
    rig.kill_driver()
    rig.copy_checkpoint("newest")
    rig.put_back("older")
    rig.feed_only(RECORDS)
    refused = rig.is_refused(_OLDER)
    rig.put_back("newest")
    return refused


def _other_tasks(rig: Rig, random: Random) -> bool:
    """Kill a driver when a task has committed, and run the batch again in other tasks."""
    rig.arm("one committed", "driver", random, passes=1)
    rig.feed(RECORDS)
    rig.await_sprung()
    return rig.is_refused(_OTHER_TASKS, plan=ONE_TASK)


def _recreated(rig: Rig, number: int) -> bool:
    """Create the input again, with as many records as were read, with fewer and with more."""
    rig.kill_driver()
    rig.recreate_input((rig.fed, RECORDS // 10, 2 * rig.fed)[number % 3])
    refused = rig.is_refused(_RECREATED)
    rig.poll(1)  # what was written in spite of it would be phantoms
    return refused


def _since(before: Verdict, after: Verdict) -> Verdict:
    earlier = asdict(before)
    return Verdict(**{name: count - earlier[name] for name, count in asdict(after).items()})


def _row(
    job: str, victim: str, point: str, kills: int, starts: int, longest: float, verdict: Verdict
) -> dict[str, Any]:
    return {
        "job": job,
        "victim": victim,
        "point": point,
        "kills": kills,
        "driver_starts": starts,
        "longest_seconds": round(longest, 1),
        **asdict(verdict),
        "clean": verdict == CLEAN,
    }
