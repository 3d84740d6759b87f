"""The asyncio driver: carries out what the scheduler says.

Four parts with one concern each, joined by the scheduler and by nothing else: *intake* asks
the source for records when the scheduler wants some; *workers* run the user's function;
*output* hands outcomes to the sink and reports them delivered; a *timer* wakes the scheduler.
A slow sink holds up nothing but itself until the bounds are reached, and then intake alone.

Nothing is reported finished before the sink has taken it. When a run fails or is cancelled,
the calls under way are cancelled, what is not finished is given back, and all of this ends
within ``patience`` seconds, whatever the user's function does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from thulawa.core.errors import ThulawaError, WrongResult
from thulawa.engine.events import (
    Abandon,
    Abort,
    Answered,
    Arrived,
    Cancel,
    Delivered,
    Drain,
    Drained,
    Emit,
    Event,
    Failed,
    GiveBack,
    Pull,
    Start,
    Succeeded,
    Tick,
    WakeAt,
)
from thulawa.engine.model import Outcome, Record, Ticket
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.workers import Report, Workers

__all__ = ["Run", "Sink", "Source"]

_log = logging.getLogger("thulawa.engine")


class Source(Protocol):
    """Where records come from."""

    async def take(self, records: int, size: int) -> Sequence[Record]:
        """Give at least one and up to ``records`` records, in offset order; none: the end.

        Once their sizes add up to ``size`` no more should be added. When cancelled, take none.
        """


class Sink(Protocol):
    """Where outcomes go."""

    async def put(self, outcomes: list[Outcome]) -> None:
        """Take the outcomes; once it returns they count as safe."""


class Run:
    """One pass over a source. Make it inside a running event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Callable[[Report], Workers],
        source: Source,
        sink: Sink,
        *,
        patience: float = 5.0,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._source = source
        self._sink = sink
        self._patience = patience
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._workers = workers(self)
        self._batched = scheduler.options.batch is not None
        self._pull: asyncio.Future[Pull] = self._loop.create_future()
        self._outbox: list[Outcome] = []
        self._outbox_filled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._parts: list[asyncio.Task[None]] = []
        self._intake: asyncio.Task[None] | None = None
        self.given_back: list[Record] = []
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Start: self._start,
            Emit: self._emit,
            Pull: self._want,
            WakeAt: self._wake_at,
            Abandon: self._abandon,
            GiveBack: self._give_back,
            Drained: self._drained,
            Abort: self._abort,
        }

    async def go(self) -> None:
        """Process the source to its end, or raise what ended the run before."""
        self._intake = self._part(self._take_in(), "intake")
        self._parts = [self._intake, self._part(self._put_out(), "output")]
        self._tell(Tick())
        try:
            await self._over
        finally:
            await self._stop()

    def drain(self) -> None:
        """Take in nothing more; `go` returns when what was taken in is finished."""
        if self._intake is not None and not self._intake.done():
            self._intake.cancel()
            self._tell(Drain())

    # --- from the workers

    def succeeded(self, answers: list[tuple[Ticket, int, Any]]) -> None:
        """Tell the scheduler of calls that returned."""
        if self._check is not None:
            answers = self._checked(answers, self._check)
        if not self._batched:
            self._tell(Succeeded(answers))
            return
        for ticket, attempt, results in answers:
            self._tell(Answered(ticket, attempt, results))

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        """Tell the scheduler of a call that raised."""
        self._tell(Failed(ticket, attempt, error))

    def _checked(
        self, answers: list[tuple[Ticket, int, Any]], check: Callable[[Any], None]
    ) -> list[tuple[Ticket, int, Any]]:
        good = []
        for answer in answers:
            try:
                check(answer[2])
                good.append(answer)
            except Exception as error:  # noqa: BLE001 whatever the check raises is its verdict
                wrong = WrongResult(str(error))
                wrong.__cause__ = error
                self.failed(answer[0], answer[1], wrong)
        return good

    # --- the parts

    def _part(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(self._guarded(work))
        task.set_name(f"{self._scheduler.options.name}-{name}")
        return task

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 go() raises it
            self._end(error)

    async def _take_in(self) -> None:
        while True:
            pull = await self._pull
            self._pull = self._loop.create_future()
            records = await self._source.take(pull.records, pull.bytes)
            if not records:
                self._tell(Drain())
                return
            self._tell(Arrived(records))

    async def _put_out(self) -> None:
        while True:
            await self._outbox_filled.wait()
            outcomes, self._outbox = self._outbox, []
            self._outbox_filled.clear()
            await self._sink.put(outcomes)
            self._tell(Delivered(len(outcomes)))

    def _tell(self, event: Event) -> None:
        """Tell the scheduler what happened and carry out what it says."""
        if self._over.done() and type(event) is not Cancel:
            return
        try:
            for instruction in self._scheduler.handle(event, self._loop.time()):
                self._carry_out[type(instruction)](instruction)
        except Exception as error:  # noqa: BLE001 go() raises it; a worker must not swallow it
            self._end(error)

    async def _stop(self) -> None:
        for task in self._parts:
            task.cancel()
        await asyncio.wait(self._parts, timeout=self._patience)
        if self._timer is not None:
            self._timer.cancel()
        if not self._scheduler.drained:
            self._tell(Cancel())
        strays = await self._workers.close(self._patience)
        if strays:
            _log.warning(
                "%s: %d calls did not stop within %g s and are left behind",
                self._scheduler.options.name,
                strays,
                self._patience,
            )

    # --- the scheduler's instructions

    def _start(self, instruction: Start) -> None:
        self._workers.start(instruction.tickets)

    def _emit(self, instruction: Emit) -> None:
        if not self._outbox:
            self._outbox_filled.set()
        self._outbox.extend(instruction.outcomes)

    def _want(self, pull: Pull) -> None:
        self._pull.set_result(pull)

    def _wake_at(self, instruction: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(instruction.when, self._tell, Tick())

    def _abandon(self, instruction: Abandon) -> None:
        self._workers.abandon(instruction.ticket, instruction.attempt)
        options = self._scheduler.options
        bound = max(options.in_flight, 2)
        if self._workers.strays() > 2 * bound and not self._over.done():
            self._end(
                ThulawaError(
                    f"{options.name}: {self._workers.strays()} calls timed out and did not stop "
                    "when told to; let the function give way to cancellation, or give it a "
                    "time-out of its own"
                )
            )

    def _give_back(self, instruction: GiveBack) -> None:
        self.given_back.extend(instruction.records)

    def _drained(self, _: Drained) -> None:
        self._end(None)

    def _abort(self, instruction: Abort) -> None:
        self._end(instruction.error)

    def _end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
