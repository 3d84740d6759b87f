"""A stage of tasks with state, inside Spark's transformWithState.

Rows are grouped by slot, one to a task number. Spark's state holds what `PagedStores` keeps, by
name; its checkpoint makes it durable, exactly once with the batch. Timers call tasks that have
no records: wall-clock punctuation on an idle topic.

Spark starts an interpreter for each stage, at each start, only to ask it for the state's
schema: so this module loads little, and what does the work when it is needed. Such a process
prints each of its steps; from where it reads the processor on, it is kept from that.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from thulawa.core.gc_freeze import settle
from thulawa.spark.internals import is_schema_process
from thulawa.spark.micro_batch.program_shipping import Shipped

if TYPE_CHECKING:
    import pandas as pd

    from thulawa.spark.micro_batch.stages import Stage

__all__ = ["StageProcessor"]


class StageProcessor(StatefulProcessor):
    """Runs the tasks of one stage; passes on what is for others."""

    def __init__(self, program: Shipped, stage: int) -> None:
        self._program = program
        self._stage = stage

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if is_schema_process():
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 to its end

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a partition."""
        settle()
        self._handle = handle
        self._state = handle.getMapState("state", "name string", "data binary")

    def handleInputRows(  # noqa: N802 Spark's name
        self,
        key: Any,  # noqa: ARG002 each row says its task
        rows: Iterator["pd.DataFrame"],
        timerValues: Any,  # noqa: ARG002, N803 Spark passes it by keyword
    ) -> Iterator["pd.DataFrame"]:
        """Run the tasks of a slot that have rows."""
        yield from self._opened().run_rows(rows)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: ARG002, N803
    ) -> Iterator["pd.DataFrame"]:
        """Run the tasks of a slot by the clock."""
        (slot,) = key
        now = timerValues.getCurrentProcessingTimeInMs()
        yield from self._opened().run_by_clock(slot, now)

    def close(self) -> None:
        """Keep the tasks for the next batch."""

    def _opened(self) -> "Stage":
        from thulawa.spark.micro_batch.stages import Stage  # noqa: PLC0415 see above

        return Stage(self._program, self._stage, self._handle, self._state)
