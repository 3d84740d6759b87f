"""Async nodes: records go through the engine, results go on to the child nodes.

While a task processes its records, an async node only collects them. `AsyncNode.drain` then runs
the engine over the collected records, many keys concurrently and each key in order, and forwards
the results in the order of the next level (`thulawa.runtime.levels`). The host supplies the event
loop: a worker's, or one in virtual time. Results keep the topic, partition and offset of their
record. The ``forward`` and ``send`` of an async processor are buffered, and take effect once, when
the call has succeeded.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from thulawa.core.records import Headers, Record, RecordMetadata
from thulawa.engine import Engine, Outcome, WorkItem
from thulawa.engine.lane_sums import LaneSums, merge_lane_sums, sample_lanes
from thulawa.errors import BadLane
from thulawa.runtime.context import Wiring
from thulawa.runtime.levels import Deferred, Level
from thulawa.runtime.processors import ContextProxy, NodeContext
from thulawa.state.key_identity import Keys
from thulawa.topology.nodes import AsyncCall

RunAsync = Callable[[Coroutine[Any, Any, Any]], Any]


class _InFlight(NamedTuple):
    """A record in the engine, and the slot of its result on the next level."""

    record: Record[Any, Any]
    slot: Deferred


# The record of the current call and its buffered outputs; None outside of calls.
_Outputs = list[Callable[[], None]]
_current: ContextVar[tuple[_InFlight, _Outputs] | None] = ContextVar(
    "thulawa_async_call", default=None
)


class AsyncNode:
    """An async node of a task: collects records and runs the engine over them."""

    def __init__(self, node: AsyncCall, following: Level, wiring: Wiring) -> None:
        self.node = node
        self._following = following
        self._forward = wiring.forward
        self._failed = wiring.failed
        self._identity = Keys(node.key_serde).identity
        self._inbox: list[WorkItem] = []
        self._lanes = node.options.lanes.indexes()
        self._offsets = count()
        self._processor: Any = None
        if node.operation == "process":
            self._processor = node.function()
            self._processor.init(_CallContext(NodeContext(node, wiring), following))
        self._engine = Engine(
            self._function(),
            node.options,
            argument=_argument(node),
            resource=node.resource,
            watchdog=False,
        )
        self._open = False
        self._seen: LaneSums = {}
        self._arrivals = _Arrivals(self._inbox)  # of `serve`
        self._outputs: asyncio.Lock | None = None
        self._run_ready: Callable[[], None] = lambda: None
        self._report_error: Callable[[BaseException], None] = lambda _: None

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Collect a record."""
        lane = 0
        try:
            identity = self._identity(key)
            if self.node.lane is not None:
                lane = self._lane(self.node.lane(key, value))
        except Exception as problem:  # noqa: BLE001 the handler decides about any error
            self._failed(problem, key, value, timestamp, headers)
            return
        item = _InFlight(Record(key, value, timestamp, headers), self._following.reserve())
        self._inbox.append(WorkItem(next(self._offsets), identity, item, timestamp, 0, lane))

    def _lane(self, wanted: object) -> int:
        if wanted not in self._lanes:
            names = [lane.name for lane in self.node.options.lanes.lanes]
            raise BadLane(f"there is no lane {wanted!r}; the lanes are {names}")
        return self._lanes[wanted]

    async def drain(self) -> None:
        """Run the engine over the collected records."""
        if not self._inbox:
            return
        if not self._open:
            await self._engine.__aenter__()
            self._open = True
        records, self._inbox = _CollectedRecords(self._inbox), []
        if not self.node.has_lanes:
            await self._engine.run(records, self)
            return
        async with sample_lanes(self._engine) as lanes:
            await self._engine.run(records, self)
        self._seen = merge_lane_sums(self._seen, lanes)

    def take_lanes(self) -> LaneSums:
        """Return the lane statistics since the last call."""
        seen, self._seen = self._seen, {}
        return seen

    async def serve(
        self,
        outputs: asyncio.Lock,
        run_ready: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run the engine over records as they arrive, until `finish` is called.

        Results are passed on while ``outputs`` is held; ``run_ready`` runs the next levels. An
        error of either is passed to ``failed`` before the lock is released: a commit after it
        would have a part of the record's effects.
        """
        self._outputs, self._run_ready, self._report_error = outputs, run_ready, failed
        async with self._engine:
            await self._engine.run(self._arrivals, self)

    @property
    def waiting(self) -> int:
        """The number of records that the engine has not read yet."""
        return len(self._inbox)

    def wake(self) -> None:
        """Wake the engine for new records."""
        if self._inbox:
            self._arrivals.wake.set()

    def finish(self) -> None:
        """End `serve` once all records are finished, also if it has not begun."""
        self._arrivals.ended = True
        self._arrivals.wake.set()

    async def put(self, outcomes: list[Outcome]) -> None:
        """Pass results to the next level, and errors at once to the handler, which may raise."""
        if self._outputs is None:
            self._pass_on(outcomes)
        else:
            async with self._outputs:
                try:
                    self._pass_on(outcomes)
                    self._run_ready()
                except BaseException as error:
                    self._report_error(error)
                    raise

    def _pass_on(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            record, slot = outcome.record.value
            if outcome.error is None:
                forward = partial(self._forward_result, record, outcome.result)
                self._following.complete(slot, forward)
            else:
                self._following.fail(slot, partial(self._fail, record, outcome.error))

    def _fail(self, record: Record[Any, Any], error: Exception) -> None:
        self._failed(error, record.key, record.value, record.timestamp, record.headers)

    async def close(self) -> None:
        """Close the engine's resource and the processor."""
        if self._open:
            self._open = False
            await self._engine.__aexit__(None, None, None)
        if self._processor is not None:
            self._processor.close()

    def _forward_result(self, record: Record[Any, Any], result: Any) -> None:
        timestamp, headers = record.timestamp, record.headers
        try:
            match self.node.operation:
                case "map_values" | "batch":
                    self._forward(record.key, result, timestamp, headers)
                case "map":
                    key, value = result
                    self._forward(key, value, timestamp, headers)
                case "flat_map":
                    for key, value in result:
                        self._forward(key, value, timestamp, headers)
                case "process":
                    for output in result:
                        output()
        except Exception as problem:  # noqa: BLE001 the handler decides about any error
            self._fail(record, problem)

    def _function(self) -> Callable[..., Any]:
        function = self.node.function
        if self.node.operation in ("map_values", "batch"):
            return function
        if self.node.operation == "process":
            return self._run_processor
        if asyncio.iscoroutinefunction(function):

            async def call(record: Record[Any, Any], *resource: Any) -> Any:
                return await function(record.key, record.value, *resource)

            return call
        return lambda record, *resource: function(record.key, record.value, *resource)

    async def _run_processor(self, item: _InFlight) -> _Outputs:
        outputs: _Outputs = []
        token = _current.set((item, outputs))
        try:
            await self._processor.process(item.record)
        finally:
            _current.reset(token)
        return outputs


def _argument(node: AsyncCall) -> Callable[[WorkItem], Any]:
    if node.operation == "map_values":
        return lambda record: record.value.record.value
    if node.operation == "process":
        return lambda record: record.value
    return lambda record: record.value.record


class _CollectedRecords:
    """The engine's source of the collected records."""

    def __init__(self, records: list[WorkItem]) -> None:
        self._records = records
        self._next = 0

    async def read(self, records: int, size: int) -> list[WorkItem]:  # noqa: ARG002 sizes are 0
        chunk = self._records[self._next : self._next + records]
        self._next += len(chunk)
        return chunk


class _Arrivals:
    """The engine's source of records that arrive while it runs."""

    def __init__(self, inbox: list[WorkItem]) -> None:
        self._inbox = inbox
        self.wake = asyncio.Event()
        self.ended = False

    async def read(self, records: int, size: int) -> list[WorkItem]:  # noqa: ARG002 sizes are 0
        while not self._inbox and not self.ended:
            self.wake.clear()
            await self.wake.wait()
        chunk = self._inbox[:records]
        del self._inbox[:records]
        return chunk


class _CallContext(ContextProxy):
    """The context of an async processor; it refers to the record of the calling coroutine."""

    def __init__(self, context: NodeContext, following: Level) -> None:
        super().__init__(context)
        self._following = following

    @property
    def record_metadata(self) -> RecordMetadata | None:
        call = _current.get()
        if call is None:
            return self._context.record_metadata
        slot = call[0].slot
        if slot.topic is None:
            return None
        return RecordMetadata(slot.topic, slot.partition, slot.offset)

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        self._emit_later(partial(self._context.forward, record, child))

    def send(self, *record: Any, **options: Any) -> None:
        self._emit_later(self._context.sending(*record, **options))

    def _emit_later(self, output: Callable[[], None]) -> None:
        """Buffer an output until its call has succeeded; defer one of a punctuation."""
        call = _current.get()
        if call is None:
            self._following.defer(output)
        else:
            call[1].append(output)
