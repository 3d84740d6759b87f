"""Sources and sinks that fail, and `map`, which has both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    coroutine,
    nothing_is_lost,
    numbered,
    offsets,
    run_on,
    until,
)
from thulawa.engine import (
    Bounds,
    Engine,
    Options,
    Outcome,
    WorkItem,
)
from thulawa.engine.sources import Channel
from thulawa.errors import (
    RecordError,
    Terminal,
    ThulawaError,
)
from thulawa.testing import Simulation, simulate


class Panic(BaseException):
    """A BaseException that is no Exception, as Rust extensions raise."""


BREAKS: dict[str, tuple[Callable[[], BaseException], type[Exception]]] = {
    "an error": (lambda: OSError("gone"), OSError),
    "a cancellation of its own": (asyncio.CancelledError, ThulawaError),
    "a panic": (lambda: Panic("at the disco"), ThulawaError),
}


@pytest.mark.parametrize(("make", "raised"), BREAKS.values(), ids=BREAKS)
def test_a_source_that_raises_ends_the_run(
    make: Callable[[], BaseException], raised: type[Exception]
) -> None:
    class Source(FakeSource):
        async def read(self, records: int, size: int) -> Sequence[WorkItem]:
            if len(self.taken) == 4:
                raise make()
            return await super().read(records, size)

    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = Source(numbered("abcabc"), chunk=2), FakeSink()
        with pytest.raises(raised):
            await engine.run(source, sink)
        assert len(source.taken) == 4
        nothing_is_lost(engine, source, sink)

    run_on(main())


@pytest.mark.parametrize(("make", "raised"), BREAKS.values(), ids=BREAKS)
def test_a_sink_that_raises_ends_the_run_and_its_outcomes_are_unfinished(
    make: Callable[[], BaseException], raised: type[Exception]
) -> None:
    class Sink(FakeSink):
        async def put(self, outcomes: list[Outcome]) -> None:
            if self.outcomes:
                raise make()
            await super().put(outcomes)

    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = FakeSource(numbered("abcabc"), chunk=1), Sink()
        with pytest.raises(raised):
            await engine.run(source, sink)
        assert sink.outcomes
        assert engine.unfinished
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_an_error_followed_by_a_cancellation_is_retrieved() -> None:
    async def main(simulation: Simulation) -> None:
        class Sink(FakeSink):
            async def put(self, outcomes: list[Outcome]) -> None:
                simulation.loop.call_soon(running.cancel)
                raise OSError("gone")

        engine = Engine(coroutine, watchdog=False)
        source, sink = FakeSource(numbered("abc")), Sink()
        running = asyncio.create_task(engine.run(source, sink))
        await asyncio.wait([running])
        cancelled.add(running.cancelled())
        if not running.cancelled():
            assert isinstance(running.exception(), OSError)
        nothing_is_lost(engine, source, sink)

    cancelled: set[bool] = set()
    for seed in range(20):
        simulate(main, seed=seed)  # fails on exceptions that are never retrieved
    assert True in cancelled


def test_records_before_the_error_of_an_iterable_arrive() -> None:
    async def main() -> None:
        def records() -> Iterator[WorkItem]:
            yield from numbered("abc")
            raise OSError("gone")

        engine = Engine(coroutine)
        with pytest.raises(OSError, match="gone"):
            async for _ in engine.map(records()):
                pass
        assert engine.statistics().arrived == 3

    run_on(main())


def test_a_source_that_returns_more_than_requested_ends_the_run() -> None:
    class Generous:
        async def read(self, records: int, size: int) -> list[WorkItem]:
            return numbered(range(records + 1))

    async def main() -> None:
        async def function(record: WorkItem) -> None:
            await asyncio.sleep(0)

        engine = Engine(function, Options(bounds=Bounds(records=10)))
        with pytest.raises(ThulawaError, match="11 records where at most 10"):
            await engine.run(Generous(), FakeSink())
        assert len(engine.unfinished) == 11

    run_on(main())


async def waiting_records(records: list[WorkItem]) -> AsyncIterator[WorkItem]:
    for record in records:
        await asyncio.sleep(0)
        yield record


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", [list, iter, waiting_records])
def test_map_yields_outcomes_in_the_emit_order(
    of: Callable[[list[WorkItem]], Any], loop: str
) -> None:
    async def main() -> None:
        engine = Engine(coroutine, Options(emit="partition"))
        outcomes = [outcome async for outcome in engine.map(of(numbered("abcab" * 20)))]
        assert [outcome.result for outcome in outcomes] == [-offset for offset in range(100)]

    run_on(main(), loop)


def test_closing_map_half_way_leaves_unfinished_all_but_what_was_read() -> None:
    async def main() -> None:
        engine = Engine(coroutine, Options(emit="partition"))
        records = iter(numbered("abc" * 10))
        read = 0
        async with aclosing(engine.map(records)) as outcomes:
            async for _ in outcomes:
                if read == 7:
                    break  # this one is not delivered: the next was not requested
                read += 1
        taken = 30 - len(list(records))
        assert offsets(engine.unfinished) == list(range(7, taken))
        again = [outcome.record.offset async for outcome in engine.map(engine.unfinished)]
        assert again == list(range(7, taken))

    run_on(main())


def test_a_reader_of_map_may_stop_without_seeing_the_failure() -> None:
    async def main(simulation: Simulation) -> None:
        async def function(record: WorkItem) -> None:
            if record.offset == 2:
                await reading.wait()
                raise Terminal("no")

        reading = asyncio.Event()
        engine = Engine(function, Options(order="partition"), watchdog=False)
        async with aclosing(engine.map(numbered("abc"))) as outcomes:
            async for _ in outcomes:
                reading.set()
                await until(lambda: not engine._busy)
                break
        assert offsets(engine.unfinished) == [0, 1, 2]

    simulate(main, seed=1)  # fails on exceptions that are never retrieved


def test_map_yields_what_was_finished_before_it_raises() -> None:
    async def main() -> None:
        async def function(record: WorkItem) -> None:
            if record.offset == 2:
                await until(lambda: len(read) == 2)
                raise Terminal("no")

        read = []
        engine = Engine(function)
        with pytest.raises(RecordError, match="offset 2"):  # noqa: PT012 reading is the statement
            async for outcome in engine.map(numbered("abc")):
                read.append(outcome.record.offset)  # noqa: PERF401 the function looks at it
        assert sorted(read) == [0, 1]
        assert offsets(engine.unfinished) == [2]

    run_on(main())


def test_a_drained_run_does_not_consume_the_rest_of_an_iterator() -> None:
    async def main() -> None:
        records = iter(numbered("abc" * 10_000))
        engine = Engine(coroutine)
        done = []
        async for outcome in engine.map(records):
            done.append(outcome)
            engine.drain()
        assert offsets(done) + offsets(records) == list(range(30_000))

    run_on(main())


def test_an_endless_iterable_does_not_block_the_loop() -> None:
    async def main() -> None:
        unhashable: Any = []
        engine = Engine(coroutine, Options(on_error="drop"))

        async def read() -> None:
            async for _ in engine.map(WorkItem(offset, unhashable) for offset in count()):
                pytest.fail("all are dropped")

        reading = asyncio.create_task(read())
        await until(lambda: engine.statistics().dropped > 10_000)
        engine.drain()
        await reading

    run_on(main())


def test_a_channel_lists_only_the_delivered_outcomes_of_the_last_put() -> None:
    async def main() -> None:
        channel = Channel()

        async def read() -> list[int]:
            return [len(channel.delivered) async for _ in channel]

        reading = asyncio.create_task(read())
        for record in numbered("abc"):
            await channel.put([Outcome(record)] * 3)
        channel.close()
        assert await reading == [0, 1, 2] * 3

    run_on(main())
