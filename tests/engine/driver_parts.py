"""Sources, sinks and loops for tests of the driver on a real event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from thulawa.engine import Engine, Outcome, WorkItem, new_event_loop

__all__ = ["LOOPS", "FakeSink", "FakeSource", "numbered", "offsets", "run_on", "until"]

T = TypeVar("T")

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}

# Far more than any test here needs: it only ends a test that hangs.
_FOR_EVER = 30.0


def run_on(main: Coroutine[Any, Any, T], loop: str = "asyncio") -> T:
    """Run a coroutine on a fresh loop of this kind; a hang is an error."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(asyncio.wait_for(main, _FOR_EVER))


async def until(fact: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    while not fact():  # noqa: ASYNC110 facts have no event to wait for
        await asyncio.sleep(0.001)


def numbered(keys: Iterable[Any]) -> list[WorkItem]:
    """Return a record for each key; its value is its offset."""
    return [WorkItem(offset, key, offset) for offset, key in enumerate(keys)]


def offsets(things: Iterable[WorkItem | Outcome]) -> list[int]:
    """Return the offsets, sorted."""
    return sorted((t.record if isinstance(t, Outcome) else t).offset for t in things)


class FakeSource:
    """Returns a list, ``chunk`` records at a time, then ends, or waits with ``open_end``."""

    def __init__(
        self, records: Sequence[WorkItem], *, chunk: int = 1_000, open_end: bool = False
    ) -> None:
        self.records = list(records)
        self.taken: list[WorkItem] = []
        self._chunk = chunk
        self._open_end = open_end

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:
        """Return the next records."""
        await asyncio.sleep(0)
        left = self.records[len(self.taken) :]
        if not left and self._open_end:
            await asyncio.get_running_loop().create_future()
        chunk = left[: min(records, self._chunk)]
        self.taken += chunk
        return chunk


class FakeSink:
    """Stores the outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    async def put(self, outcomes: list[Outcome]) -> None:
        """Store the outcomes, after an iteration of the loop in which it may be cancelled."""
        await asyncio.sleep(0)
        self.outcomes += outcomes

    def results(self) -> list[Any]:
        """Return the results by offset."""
        return [
            outcome.result for outcome in sorted(self.outcomes, key=lambda one: one.record.offset)
        ]


def nothing_is_lost(engine: Engine, source: FakeSource, sink: FakeSink, dropped: int = 0) -> None:
    """Check that every record read is delivered, unfinished or dropped, each once."""
    known = offsets(sink.outcomes) + offsets(engine.unfinished)
    assert len(set(known)) == len(known), "delivered and given back"
    assert set(known) <= set(offsets(source.taken))
    assert len(known) + dropped == len(source.taken), "lost"


async def coroutine(record: WorkItem) -> int:
    await asyncio.sleep(0)
    return -record.offset


def plain(record: WorkItem) -> int:
    return -record.offset


class Stubborn:
    """Ignores every cancellation until the test is over."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.over = asyncio.Event()

    async def stay(self) -> None:
        self.entered.set()
        while not self.over.is_set():
            with suppress(asyncio.CancelledError):
                await self.over.wait()
