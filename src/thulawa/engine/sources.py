"""Sources over Python iterables, and the sink behind ``Engine.map``."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

from thulawa.engine.driver import WorkSource
from thulawa.engine.work_items import Outcome, WorkItem

_CHUNK = 1_000


def source_of(records: Iterable[WorkItem] | AsyncIterable[WorkItem]) -> WorkSource:
    """Return a source over an iterable; an async one may wait, a plain one must not."""
    if isinstance(records, AsyncIterable):
        return _AsyncSource(records)
    return _PlainSource(records)


class _PlainSource:
    """Reads an iterable in chunks that are small enough not to block the event loop."""

    def __init__(self, records: Iterable[WorkItem]) -> None:
        self._records = iter(records)
        self._error: Exception | None = None

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:
        await asyncio.sleep(0)  # cancellation, if any, is raised here, before anything is read
        if self._error is not None:
            raise self._error
        chunk: list[WorkItem] = []
        try:
            for record in self._records:
                chunk.append(record)
                size -= getattr(record, "size", 0)  # the engine rejects what is no work item
                if len(chunk) >= min(records, _CHUNK) or size <= 0:
                    break
        except Exception as error:
            if not chunk:
                raise
            self._error = error  # raised once the records before it have arrived
        return chunk


class _AsyncSource:
    """Reads an async iterable record by record, because the next one may not be available."""

    def __init__(self, records: AsyncIterable[WorkItem]) -> None:
        self._records = aiter(records)

    async def read(self, records: int, size: int) -> Sequence[WorkItem]:  # noqa: ARG002 one fits
        try:
            return [await anext(self._records)]
        except StopAsyncIteration:
            return []


class Channel:
    """A sink to iterate over: an outcome is delivered when the reader asks for the next.

    `put` returns when all its outcomes are delivered; ``delivered`` lists those of a `put` that
    has not returned.
    """

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._outcomes: list[Outcome] = []
        self._closed = False
        self.delivered: list[WorkItem] = []

    async def put(self, outcomes: list[Outcome]) -> None:
        """Pass outcomes to the reader; return when it asks for more."""
        self._outcomes = outcomes
        self._emptied.clear()
        self._filled.set()
        await self._emptied.wait()

    def close(self, _: object = None) -> None:
        """End the reader's iteration."""
        self._closed = True
        self._filled.set()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        while True:
            await self._filled.wait()
            self._filled.clear()
            outcomes, self._outcomes = self._outcomes, []
            if outcomes:
                self.delivered = []  # the previous put has returned
            for outcome in outcomes:
                yield outcome
                self.delivered.append(outcome.record)
            self._emptied.set()
            if self._closed:
                return
