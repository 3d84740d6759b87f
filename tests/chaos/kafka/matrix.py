"""The crash matrix: every victim at every crash point, some rounds each, and a verdict per cell.

Changes are cells of another kind: between two drivers, the checkpoint, the plan or the input topic
is replaced. The second driver must reject it, and nothing may be lost or duplicated, neither then
nor after the original is restored.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from tests.chaos.harness import Row, verdict_row
from tests.chaos.kafka.crash_points import POINTS, STARTING_POINTS, STATE_POINTS, Point
from tests.chaos.kafka.job import ONE_TASK
from tests.chaos.kafka.rig import VICTIMS, Rig, Victim
from thulawa.dev.kafka_broker import DevBroker

__all__ = ["CELLS", "CHANGES", "AnyCell", "Cell", "Change", "run", "select"]

RECORDS = 240  # of a round: four micro-batches


@dataclass(frozen=True, slots=True)
class Cell:
    """A victim and the point at which it is killed."""

    victim: Victim
    point: Point

    @property
    def name(self) -> str:
        """Name for ``--only``."""
        return f"{self.victim}/{self.point}"

    @property
    def job(self) -> str:
        """The job that has this crash point."""
        return "rank" if self.point in STATE_POINTS else "map"


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced between two drivers of a job."""

    what: Literal["older checkpoint", "other tasks", "recreated topic"]
    job: str

    @property
    def name(self) -> str:
        """Name for ``--only``."""
        return f"{self.what}/{self.job}"


AnyCell: TypeAlias = Cell | Change
CELLS = tuple(Cell(victim, point) for point in POINTS for victim in VICTIMS)
CHANGES = (
    Change("older checkpoint", "map"),
    Change("other tasks", "map"),
    Change("older checkpoint", "rank"),
    # the last of their jobs, which cannot continue after them
    Change("recreated topic", "map"),
    Change("recreated topic", "rank"),
)
_OLDER = "the checkpoint is older than what its sink has written"
_OTHER_TASKS = "its rows may be in other tasks now"
_RECREATED = "was deleted and created again"


def select(words: Sequence[str]) -> list[AnyCell]:
    """Return the cells whose name contains one of the words; without words, all."""
    cells: tuple[AnyCell, ...] = (*CELLS, *CHANGES)
    return [cell for cell in cells if not words or any(word in cell.name for word in words)]


def run(
    cells: Sequence[AnyCell], broker: DevBroker, folder: Path, *, rounds: int, seed: int
) -> Iterator[Row]:
    """Run the cells of each job in one rig; yield a row per cell, and one per job at its end."""
    for job in dict.fromkeys(cell.job for cell in cells):
        own = [cell for cell in cells if cell.job == job]
        with Rig(job, broker, folder / job) as rig:
            rig.ensure_running()
            rig.feed(RECORDS)
            rig.await_output()
            for cell in own:
                yield _run_cell(rig, cell, rounds, Random(f"{seed} {cell.name}"))
            rig.kill_driver()
            yield verdict_row(
                rig.final_verdict(), job=job, victim="–", point="read again",
                kills=rounds * len(own), driver_starts=rig.driver_starts, longest_seconds=0.0,
            )  # fmt: skip


def _run_cell(rig: Rig, cell: AnyCell, rounds: int, random: Random) -> Row:
    starts, before, longest, kills = rig.driver_starts, rig.verdict(), 0.0, 0
    for number in range(rounds):
        if isinstance(cell, Cell):
            _crash(rig, cell, random)
            kills += 1
        else:
            kills += _change(rig, cell, number, random)
        changed = time.monotonic()
        if not cell.name.startswith("recreated topic"):
            rig.await_output()
        longest = max(longest, time.monotonic() - changed)
    victim, point = cell.name.split("/") if isinstance(cell, Cell) else (cell.what, "rejected")
    row = verdict_row(
        rig.verdict() - before, job=cell.job, victim=victim, point=point, kills=kills,
        driver_starts=rig.driver_starts - starts, longest_seconds=round(longest, 1),
    )  # fmt: skip
    return row | {"clean": row["clean"] and kills == rounds}


def _crash(rig: Rig, cell: Cell, random: Random) -> None:
    if cell.point in STARTING_POINTS:  # reached when a worker without state starts
        rig.kill_driver()
        if cell.point == "rebuild":
            rig.remove_checkpoint()
        rig.ensure_running()
    rig.arm(cell.point, cell.victim, random, passes=1 if cell.point == "rebuild" else 3)
    rig.feed(RECORDS)
    rig.await_crash()


def _change(rig: Rig, cell: Change, number: int, random: Random) -> bool:
    """Make a change; return whether the next driver rejects it."""
    if cell.what == "older checkpoint":
        return _restore_older_checkpoint(rig)
    if cell.what == "other tasks":
        return _run_in_other_tasks(rig, random)
    return _recreate_topic(rig, number)


def _restore_older_checkpoint(rig: Rig) -> bool:
    """Restore an older checkpoint while new records wait; restore the newest afterwards."""
    rig.copy_checkpoint("older")
    rig.feed(RECORDS)
    rig.await_output()
    rig.kill_driver()
    rig.copy_checkpoint("newest")
    rig.restore_checkpoint("older")
    rig.feed_only(RECORDS)
    rejected = rig.is_rejected(_OLDER)
    rig.restore_checkpoint("newest")
    return rejected


def _run_in_other_tasks(rig: Rig, random: Random) -> bool:
    """Kill the driver after one task has committed; run the micro-batch again in other tasks."""
    rig.arm("one committed", "driver", random, passes=1)
    rig.feed(RECORDS)
    rig.await_crash()
    return rig.is_rejected(_OTHER_TASKS, plan=ONE_TASK)


def _recreate_topic(rig: Rig, number: int) -> bool:
    """Create the input again, with as many records as were read, with fewer, or with more."""
    rig.kill_driver()
    rig.recreate_input((rig.fed, RECORDS // 10, 2 * rig.fed)[number % 3])
    rejected = rig.is_rejected(_RECREATED)
    rig.poll(1)  # records that were written nevertheless are phantoms
    return rejected
