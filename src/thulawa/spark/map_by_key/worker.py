"""Run an operator in a Spark Python worker: Arrow batches in, the engine, Arrow batches out.

There are three threads. The *reader* reads batches from Spark, a bounded number ahead of the
engine. The *loop* thread, one per worker process, runs the engine. The thread that Spark calls
converts outcomes to Arrow and returns them to Spark. A batch stays in Arrow until the engine takes
its rows.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa

from thulawa.core.gc_freeze import freeze_gc
from thulawa.engine import Outcome, WorkItem
from thulawa.engine.lane_sums import sample_lanes
from thulawa.engine.work_items import NoLane
from thulawa.errors import RecordError, message_of
from thulawa.spark.event_loop import event_loop
from thulawa.spark.map_by_key.accumulators import adopt_accumulators
from thulawa.spark.map_by_key.arrow_output import ArrowOutput
from thulawa.spark.map_by_key.dead_letters import DeadLetters, topic_position
from thulawa.spark.map_by_key.operator import Operator
from thulawa.spark.map_by_key.operator_states import OperatorState, close_resources_at_exit, lease
from thulawa.spark.map_by_key.rows import LazyBatch, Row, row_type
from thulawa.spark.task_context import current_task

_BATCHES_AHEAD = 4
_CHUNK = 1_000
_IN_PASSING = 10_000


def process(operator: Operator, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the operator over one partition."""
    freeze_gc()
    adopt_accumulators()
    task = current_task()
    if task is not None:
        close_resources_at_exit()
    loop = event_loop()
    state = lease(operator)
    topic = operator.dead_letters
    dead_letters = None if topic is None else DeadLetters(topic, operator, task)
    intake = Intake(operator, batches, loop, dead_letters)
    outlet = Outlet(loop)
    running = _run(operator, state, intake, outlet)
    run: Future[None] = asyncio.run_coroutine_threadsafe(running, loop)
    run.add_done_callback(outlet.close)
    try:
        yield from ArrowOutput(operator, dead_letters).batches(outlet)
        run.result()
    except Exception as error:
        _name_source(error)
        where = "the partition" if task is None else f"Spark partition {task.partition}"
        error.add_note(f"operator {operator.name}, in {where}")
        raise
    finally:
        run.cancel()
        intake.close()
        state.release()


async def _run(
    operator: Operator, state: OperatorState, intake: "Intake", outlet: "Outlet"
) -> None:
    async with state.engine(operator) as engine:
        if operator.report is None:
            await engine.run(intake, outlet)
            return
        async with sample_lanes(engine) as lanes:
            await engine.run(intake, outlet)
        operator.report.add(lanes)


def _name_source(error: Exception) -> None:
    """Set the topic-partition and offset in the error of a row that was read from a topic."""
    if isinstance(error, RecordError) and isinstance(error.record, WorkItem):
        row: Row = error.record.value
        if (position := topic_position(row)) is not None:
            topic, partition, error.offset = position
            error.source = f"{topic}-{partition}"


class Intake:
    """The source of the engine: rows of the batches that the reader has read from Spark."""

    def __init__(
        self,
        operator: Operator,
        batches: Iterator[pa.RecordBatch],
        loop: asyncio.AbstractEventLoop,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self._operator = operator
        self._dead_letters = dead_letters
        self._batches = batches
        self._loop = loop
        self._slots = threading.Semaphore(_BATCHES_AHEAD)
        self._arrived: asyncio.Queue[LazyBatch | BaseException | None] = asyncio.Queue()
        self._row_type: type[Row] | None = None
        self._offset = 0
        self._batch: LazyBatch | None = None
        self._left = 0
        self._size = 0
        self._keys: Sequence[Any] = ()
        self._times: Sequence[float] = ()
        self._lanes = operator.options.lanes.indexes()
        self._closed = False
        threading.Thread(target=self._read, name="thulawa-reader", daemon=True).start()

    async def read(self, records: int, size: int) -> list[WorkItem]:
        """Return rows as records; wait for the reader if there are none."""
        while self._left or await self._next_batch():
            count = min(records, _CHUNK, self._left, max(1, size // max(1, self._size)))
            if taken := self._next_rows(count):
                return taken
        return []

    async def _next_batch(self) -> bool:
        """Open the next batch; return whether there is one."""
        batch = await self._arrived.get()
        if batch is None:
            return False
        if isinstance(batch, BaseException):
            raise batch
        self._open(batch)
        self._slots.release()
        return True

    def _open(self, batch: LazyBatch) -> None:
        """Open a batch: only its keys and timestamps are converted to Python values."""
        arrow = batch.arrow
        if self._row_type is None:
            self._row_type = row_type(arrow.schema.names)
        self._batch = batch
        self._left = arrow.num_rows
        self._size = arrow.nbytes // arrow.num_rows
        self._keys = self._keys_of(batch)
        self._times = self._times_of(batch)

    def _next_rows(self, count: int) -> list[WorkItem]:
        batch, make, size = self._batch, self._row_type, self._size
        assert batch is not None
        assert make is not None
        start = batch.arrow.num_rows - self._left
        end = start + count
        offsets = range(self._offset, self._offset + count)
        rows = map(make, repeat(batch), range(start, end))
        keys, times = self._keys[start:end], self._times[start:end]
        self._offset += count
        self._left -= count
        records = list(map(WorkItem, offsets, keys, rows, times, repeat(size)))
        if self._dead_letters is not None:
            records = self._dead_letters.without_written(records)
        if self._operator.lane is not None:
            self._set_lanes(records, self._operator.lane)
        return records

    def _set_lanes(self, records: list[WorkItem], lane: str | Callable[[Any], str | int]) -> None:
        of = itemgetter(lane) if isinstance(lane, str) else lane
        for record in records:
            try:
                name = of(record.value)
                known = name in self._lanes
                record.lane = self._lanes[name] if known else self._no_lane(name)
            except Exception as error:  # noqa: BLE001 the error policy decides
                record.lane = NoLane(f"lane=: {type(error).__name__}: {message_of(error)}")

    def _no_lane(self, wanted: object) -> NoLane:
        names = [one.name for one in self._operator.options.lanes.lanes]
        return NoLane(f"lane=: there is no lane {wanted!r}; the lanes are {names}")

    def close(self) -> None:
        """Stop the reader."""
        self._closed = True
        self._slots.release()

    def _read(self) -> None:
        """Read batches ahead of the engine, on the reader's thread."""
        arrive = self._arrived.put_nowait
        end: BaseException | None = None
        try:
            for batch in self._batches:
                self._slots.acquire()
                if self._closed:
                    return
                if batch.num_rows:
                    self._loop.call_soon_threadsafe(arrive, LazyBatch(batch))
                else:
                    self._slots.release()
        except BaseException as error:  # noqa: BLE001 the engine raises it
            end = error
        self._loop.call_soon_threadsafe(arrive, end)

    def _keys_of(self, batch: LazyBatch) -> Sequence[Any]:
        schema = batch.arrow.schema
        columns = [batch.column(schema.get_field_index(name)) for name in self._operator.keys]
        if len(columns) == 1:
            return columns[0]
        return list(zip(*columns, strict=True)) or [None] * batch.arrow.num_rows

    def _times_of(self, batch: LazyBatch) -> Sequence[float]:
        if self._operator.timestamp is None:
            return range(self._offset, self._offset + batch.arrow.num_rows)
        column = batch.arrow.column(batch.arrow.schema.get_field_index(self._operator.timestamp))
        times: list[float] = column.cast(pa.int64()).fill_null(0).to_pylist()
        return times


class Outlet:
    """The sink of the engine: passes outcomes to the thread that Spark calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[list[Outcome] | None] = queue.SimpleQueue()
        self._gathered: list[Outcome] = []
        self._pending = 0
        self._room = asyncio.Event()

    async def put(self, outcomes: list[Outcome]) -> None:
        """Pass outcomes on; wait while too many are pending."""
        while self._pending >= _IN_PASSING:
            self._room.clear()
            await self._room.wait()
        self._pending += len(outcomes)
        self._gathered += outcomes
        if len(self._gathered) >= _CHUNK:  # each one costs both threads a switch
            self._hand_over()

    def _hand_over(self) -> None:
        outcomes, self._gathered = self._gathered, []
        self._queue.put(outcomes)

    def close(self, _: object = None) -> None:
        """End the iteration over outcomes."""
        self._hand_over()
        self._queue.put(None)

    def __iter__(self) -> Iterator[list[Outcome]]:
        while (outcomes := self._queue.get()) is not None:
            yield outcomes
            self._loop.call_soon_threadsafe(self._passed, len(outcomes))

    def _passed(self, count: int) -> None:
        self._pending -= count
        self._room.set()
