"""Run the tasks of a stage with the rows of a micro-batch, and pass other rows on."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import pandas as pd

from thulawa.spark.micro_batch.program_shipping import ShippedProgram, decode_counts
from thulawa.spark.micro_batch.task_host import find_task
from thulawa.spark.micro_batch.wire import CLOCK, COUNTS, Packed, bounded

_FRAME_BYTES = 2**19  # many times the size of Python's write buffer


class StageRunner:
    """Runs the tasks of one stage with the state of one Spark partition."""

    def __init__(self, program: ShippedProgram, stage: int, handle: Any, state: Any) -> None:
        self._program = program.open()
        self._report_lanes = program.report_lanes
        self._count = program.count
        self._stage = stage
        self._handle = handle
        self._state = state

    def run_rows(self, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Run the tasks that have rows; yield their outputs and the rows of other stages."""
        mine: dict[tuple[int, int], list[Packed]] = {}
        others: list[Packed] = []
        batch_time = 0
        for frame in rows:
            for row in frame.itertuples(index=False, name=None):
                packed, batch_time = Packed(*row[:-1]), row[-1]
                if packed.stage != self._stage:
                    others.append(packed)
                elif packed.topic == COUNTS:
                    self._count(decode_counts(packed.data))
                else:
                    mine.setdefault(self._part_of(packed), []).append(packed)
        # Spark's sort by slot does not preserve their order if it spills
        yield from _frames(sorted(others, key=attrgetter("place")))
        for (group, number), batch in mine.items():
            yield from self._run(group, number, batch, batch_time)

    def run_by_clock(self, slot: int, batch_time: int) -> Iterator[pd.DataFrame]:
        """Run the tasks of a slot without rows, because a timer has expired."""
        for part in self._program.plan.parts.values():
            for number in range(len(part.tasks)):
                if part.stage == self._stage and self._program.slot_of(number) == slot:
                    yield from self._run(part.group.id, number, [], batch_time)

    def _part_of(self, row: Packed) -> tuple[int, int]:
        plan = self._program.plan
        if row.topic == CLOCK or row.topic in plan.global_topics or self._program.recovery:
            return row.part, row.task
        return plan.readers[row.topic], row.task

    def _run(
        self, group: int, number: int, rows: list[Packed], batch_time: int
    ) -> Iterator[pd.DataFrame]:
        program = self._program
        task = find_task(program, program.plan.parts[group], number)
        state = _State(self._state, f"{program.prefixes[group]}/{number}/")
        for out in task.run(rows, program.now(batch_time), state):
            yield from _frames(out)
        self._report_lanes(task.take_lanes())
        self._count(task.take_counts())
        due = task.next_wall_clock_time()
        if due is not None and program.has_timers:
            self._handle.registerTimer(program.timer(due, batch_time))


class _State:
    """The part of Spark's map state that belongs to one task."""

    def __init__(self, state: Any, prefix: str) -> None:
        self._state = state
        self._prefix = prefix

    def get(self, name: str) -> bytes | None:
        found = self._state.getValue((self._prefix + name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, data: bytes) -> None:
        self._state.updateValue((self._prefix + name,), (data,))

    def remove(self, name: str) -> None:
        self._state.removeKey((self._prefix + name,))


def _frames(rows: Iterable[Packed]) -> Iterator[pd.DataFrame]:
    """Yield rows in frames of bounded size: Spark reads one while the next is built."""
    for some in bounded(rows, _FRAME_BYTES):
        yield pd.DataFrame(some, columns=list(Packed._fields))
