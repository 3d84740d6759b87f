"""Sources, sinks and loops for tests of the driver on a real event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from thulawa.engine import Engine, Outcome, Record, new_event_loop

__all__ = ["LOOPS", "FakeSink", "FakeSource", "numbered", "offsets", "run_on", "until"]

T = TypeVar("T")

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}

# Far more than anything here takes: it ends a test that would hang, and decides nothing else.
_FOR_EVER = 30.0


def run_on(main: Coroutine[Any, Any, T], loop: str = "asyncio") -> T:
    """Run a coroutine on a fresh loop of this kind; a hang is an error."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(asyncio.wait_for(main, _FOR_EVER))


async def until(fact: Callable[[], object]) -> None:
    """Wait until something has become true."""
    while not fact():  # noqa: ASYNC110 facts have no event to wait for
        await asyncio.sleep(0.001)


def numbered(keys: Iterable[Any]) -> list[Record]:
    """Make a record of each key; its value is its offset."""
    return [Record(offset, key, offset) for offset, key in enumerate(keys)]


def offsets(things: Iterable[Record | Outcome]) -> list[int]:
    """Give the offsets, sorted."""
    return sorted((t.record if isinstance(t, Outcome) else t).offset for t in things)


class FakeSource:
    """Hands over a list, ``chunk`` at a time, then ends, or with ``open_end`` waits for ever."""

    def __init__(
        self, records: Sequence[Record], *, chunk: int = 1_000, open_end: bool = False
    ) -> None:
        self.records = list(records)
        self.taken: list[Record] = []
        self._chunk = chunk
        self._open_end = open_end

    async def take(self, records: int, size: int) -> Sequence[Record]:
        """Hand over the next records."""
        await asyncio.sleep(0)
        left = self.records[len(self.taken) :]
        if not left and self._open_end:
            await asyncio.get_running_loop().create_future()
        chunk = left[: min(records, self._chunk)]
        self.taken += chunk
        return chunk


class FakeSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    async def put(self, outcomes: list[Outcome]) -> None:
        """Keep the outcomes, after a turn in which it may be cancelled."""
        await asyncio.sleep(0)
        self.outcomes += outcomes

    def results(self) -> list[Any]:
        """Give the results by offset."""
        return [
            outcome.result for outcome in sorted(self.outcomes, key=lambda one: one.record.offset)
        ]


def nothing_is_lost(engine: Engine, source: FakeSource, sink: FakeSink, dropped: int = 0) -> None:
    """Check that what was taken is delivered, given back or dropped, each once."""
    known = offsets(sink.outcomes) + offsets(engine.given_back)
    assert len(set(known)) == len(known), "delivered and given back"
    assert set(known) <= set(offsets(source.taken))
    assert len(known) + dropped == len(source.taken), "lost"


async def coroutine(record: Record) -> int:
    await asyncio.sleep(0)
    return -record.offset


def plain(record: Record) -> int:
    return -record.offset


class Stubborn:
    """Swallows every cancellation until the test is over."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.over = asyncio.Event()

    async def stay(self) -> None:
        self.entered.set()
        while not self.over.is_set():
            with suppress(asyncio.CancelledError):
                await self.over.wait()
