"""A stateful stage as a processor of Spark's ``transformWithState``.

Rows are grouped by slot, one per task number. Spark's map state holds the pages of `PagedStores` by
name and checkpoints them with the micro-batch, exactly once. Timers run tasks that have no records:
wall-clock punctuation on an idle topic.

At each start Spark runs one process per stage only to ask for the state schema, so this module
imports the rest when it is needed. Such a process prints every step; its output is discarded from
where it unpickles the processor.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from thulawa.core.gc_freeze import freeze_gc
from thulawa.spark.internals import is_schema_process
from thulawa.spark.micro_batch.program_shipping import ShippedProgram

if TYPE_CHECKING:
    import pandas as pd

    from thulawa.spark.micro_batch.stages import StageRunner


class StageProcessor(StatefulProcessor):
    """Runs the tasks of one stage and passes on the rows of others."""

    def __init__(self, program: ShippedProgram, stage: int) -> None:
        self._program = program
        self._stage = stage

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if is_schema_process():
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 to its end

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a Spark partition."""
        freeze_gc()
        self._handle = handle
        self._state = handle.getMapState("state", "name string", "data binary")

    def handleInputRows(  # noqa: N802 Spark's name
        self,
        key: Any,  # noqa: ARG002 rows name their task
        rows: Iterator["pd.DataFrame"],
        timerValues: Any,  # noqa: ARG002, N803 Spark passes it by keyword
    ) -> Iterator["pd.DataFrame"]:
        """Run the tasks of a slot that have rows."""
        yield from self._runner().run_rows(rows)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: ARG002, N803
    ) -> Iterator["pd.DataFrame"]:
        """Run the tasks of a slot whose timer has expired."""
        (slot,) = key
        now = timerValues.getCurrentProcessingTimeInMs()
        yield from self._runner().run_by_clock(slot, now)

    def close(self) -> None:
        """Do nothing: tasks are cached for the next micro-batch."""

    def _runner(self) -> "StageRunner":
        from thulawa.spark.micro_batch.stages import StageRunner  # noqa: PLC0415 see above

        return StageRunner(self._program, self._stage, self._handle, self._state)
