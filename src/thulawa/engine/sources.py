"""Sources over what Python iterates, and the channel behind ``Engine.map``."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

from thulawa.engine.driver import Source
from thulawa.engine.model import Outcome, Record

__all__ = ["Channel", "source_of"]

_CHUNK = 1_000


def source_of(records: Iterable[Record] | AsyncIterable[Record]) -> Source:
    """Make a source of an iterable; an async one may wait, a plain one must not."""
    if isinstance(records, AsyncIterable):
        return _AsyncSource(records)
    return _PlainSource(records)


class _PlainSource:
    """Chunks of an iterable; a chunk is small enough not to hold up the loop."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = iter(records)
        self._error: Exception | None = None

    async def take(self, records: int, size: int) -> Sequence[Record]:
        await asyncio.sleep(0)  # before anything is taken: here it may be cancelled
        if self._error is not None:
            raise self._error
        chunk: list[Record] = []
        try:
            for record in self._records:
                chunk.append(record)
                size -= getattr(record, "size", 0)  # what is no record the engine will refuse
                if len(chunk) >= min(records, _CHUNK) or size <= 0:
                    break
        except Exception as error:
            if not chunk:
                raise
            self._error = error  # once those before it are taken in
        return chunk


class _AsyncSource:
    """An async iterable, record by record: nobody knows whether the next one is there yet."""

    def __init__(self, records: AsyncIterable[Record]) -> None:
        self._records = aiter(records)

    async def take(self, records: int, size: int) -> Sequence[Record]:  # noqa: ARG002 one fits
        try:
            return [await anext(self._records)]
        except StopAsyncIteration:
            return []


class Channel:
    """A sink that is read from: an outcome counts as safe when the reader asks for the next.

    The driver hears of it when all of a put are read; ``read`` lists those that it may not
    have heard of.
    """

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._outcomes: list[Outcome] = []
        self._closed = False
        self.read: list[Record] = []

    async def put(self, outcomes: list[Outcome]) -> None:
        """Offer outcomes; return when the reader has come back for more."""
        self._outcomes = outcomes
        self._emptied.clear()
        self._filled.set()
        await self._emptied.wait()

    def close(self, _: object = None) -> None:
        """Let the reader come to an end."""
        self._closed = True
        self._filled.set()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        while True:
            await self._filled.wait()
            self._filled.clear()
            outcomes, self._outcomes = self._outcomes, []
            if outcomes:
                self.read = []  # to offer these the driver has heard of those before
            for outcome in outcomes:
                yield outcome
                self.read.append(outcome.record)
            self._emptied.set()
            if self._closed:
                return
