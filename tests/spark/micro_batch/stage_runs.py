"""The stages of a program without Spark, over rows in any order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa

from tests.spark.dry import Input, TaskState, source_chunks
from thulawa.runtime.planning import plan
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.connectors.chunks import Chunk
from thulawa.spark.micro_batch.first_stage import run_first_stage
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import ShippedProgram
from thulawa.spark.micro_batch.stages import StageRunner
from thulawa.spark.micro_batch.wire import SINK, Packed, packed_batch, unpack_outgoing
from thulawa.topology.topology import Topology

__all__ = ["ShuffledRun"]

_runs = count()
_SOURCE_ROWS = 50
_FRAME_ROWS = 3


class ShuffledRun:
    """One micro-batch of a program, in which ``order`` permutes the rows of a slot between stages.

    Spark may reorder rows that have the same sort key. ``rows`` are all rows between two stages,
    ``bundles`` the bytes of each Arrow batch of the first stage.
    """

    def __init__(
        self, topology: Topology, partitions: Mapping[str, int], order: Random | None
    ) -> None:
        planned = plan(topology, partitions)
        options = TaskOptions(commit="batch", max_ahead="1 day")
        prefixes = {part: str(part) for part in planned.parts}
        run = f"shuffled/{next(_runs)}"
        self._program = Program("app", run, planned, options, prefixes=prefixes)
        self._shipped = ShippedProgram(self._program)
        self._order = order
        self.rows: list[Packed] = []
        self.bundles: list[int] = []

    def outputs(
        self, inputs: Mapping[tuple[str, int], Sequence[Input]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the output records by topic, in the order of the sink."""
        rows = [
            row
            for place, records in inputs.items()
            for batch in run_first_stage(self._shipped, self._source(place, records))
            for row in self._opened(batch)
        ]
        for stage in range(1, self._program.plan.stages + 1):
            self.rows += rows
            rows = [row for slot in self._slots(rows) for row in self._run(stage, slot)]
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            assert row.stage == SINK
            for batch in unpack_outgoing(iter([packed_batch([row])])):
                found.setdefault(row.topic, []).extend(batch.to_pylist())
        return found

    def _opened(self, batch: pa.RecordBatch) -> list[Packed]:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        packed = [Packed(*row) for row in rows]
        self.bundles.append(sum(len(row.data) for row in packed))
        return packed

    def _source(self, place: tuple[str, int], records: Sequence[Input]) -> Iterator[Chunk]:
        for at in range(0, len(records), _SOURCE_ROWS):
            yield from source_chunks({place: records[at : at + _SOURCE_ROWS]})

    def _slots(self, rows: list[Packed]) -> Iterator[list[Packed]]:
        for slot in sorted({row.slot for row in rows}):
            mine = [row for row in rows if row.slot == slot]
            if self._order is not None:
                self._order.shuffle(mine)
            yield mine

    def _run(self, stage: int, rows: list[Packed]) -> Iterator[Packed]:
        running = StageRunner(self._shipped, stage, None, _MapState())
        timed = [(*row, 2_000_000_000_000) for row in rows]
        columns = [*Packed._fields, "time"]
        frames = (
            pd.DataFrame(timed[at : at + _FRAME_ROWS], columns=columns)
            for at in range(0, len(timed), _FRAME_ROWS)
        )
        for frame in running.run_rows(frames):
            yield from (Packed(*row) for row in frame.itertuples(index=False, name=None))


class _MapState:
    """Spark's map state, in memory."""

    def __init__(self) -> None:
        self._state = TaskState()

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:  # noqa: N802 Spark's name
        found = self._state.get(*key)
        return None if found is None else (found,)

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:  # noqa: N802
        self._state.put(*key, *value)

    def removeKey(self, key: tuple[str]) -> None:  # noqa: N802
        self._state.remove(*key)
