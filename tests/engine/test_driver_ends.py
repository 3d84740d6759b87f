"""Sources and sinks that break, and `map`, which is both."""

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
from thulawa.core.errors import (
    RecordError,
    Terminal,
    ThulawaError,
)
from thulawa.engine import (
    Bounds,
    Engine,
    Options,
    Outcome,
    Record,
)
from thulawa.engine.sources import Channel
from thulawa.testing import Simulation, simulate


class Panic(BaseException):
    """What Rust extensions raise: no Exception."""


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
        async def take(self, records: int, size: int) -> Sequence[Record]:
            if len(self.taken) == 4:
                raise make()
            return await super().take(records, size)

    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = Source(numbered("abcabc"), chunk=2), FakeSink()
        with pytest.raises(raised):
            await engine.run(source, sink)
        assert len(source.taken) == 4
        nothing_is_lost(engine, source, sink)

    run_on(main())


@pytest.mark.parametrize(("make", "raised"), BREAKS.values(), ids=BREAKS)
def test_a_sink_that_raises_ends_the_run_and_its_outcomes_are_given_back(
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
        assert engine.given_back
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_an_error_that_a_cancellation_overtakes_is_not_left_lying() -> None:
    async def main(simulation: Simulation) -> None:
        class Sink(FakeSink):
            async def put(self, outcomes: list[Outcome]) -> None:
                simulation.loop.call_soon(running.cancel)
                raise OSError("gone")

        engine = Engine(coroutine, watch=False)
        source, sink = FakeSource(numbered("abc")), Sink()
        running = asyncio.create_task(engine.run(source, sink))
        await asyncio.wait([running])
        cancelled.add(running.cancelled())
        if not running.cancelled():
            assert isinstance(running.exception(), OSError)
        nothing_is_lost(engine, source, sink)

    cancelled: set[bool] = set()
    for seed in range(20):
        simulate(main, seed=seed)  # objects to exceptions that nobody retrieves
    assert True in cancelled


def test_an_iterable_that_raises_has_its_records_before_that_taken_in() -> None:
    async def main() -> None:
        def records() -> Iterator[Record]:
            yield from numbered("abc")
            raise OSError("gone")

        engine = Engine(coroutine)
        with pytest.raises(OSError, match="gone"):
            async for _ in engine.map(records()):
                pass
        assert engine.statistics().taken == 3

    run_on(main())


def test_a_source_that_gives_more_than_was_asked_for_ends_the_run() -> None:
    class Generous:
        async def take(self, records: int, size: int) -> list[Record]:
            return numbered(range(records + 1))

    async def main() -> None:
        async def function(record: Record) -> None:
            await asyncio.sleep(0)

        engine = Engine(function, Options(bounds=Bounds(records=10)))
        with pytest.raises(ThulawaError, match="11 records where at most 10"):
            await engine.run(Generous(), FakeSink())
        assert len(engine.given_back) == 11

    run_on(main())


async def waiting_records(records: list[Record]) -> AsyncIterator[Record]:
    for record in records:
        await asyncio.sleep(0)
        yield record


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("of", [list, iter, waiting_records])
def test_map_gives_outcomes_in_the_order_of_the_contract(
    of: Callable[[list[Record]], Any], loop: str
) -> None:
    async def main() -> None:
        engine = Engine(coroutine, Options(emit="partition"))
        outcomes = [outcome async for outcome in engine.map(of(numbered("abcab" * 20)))]
        assert [outcome.result for outcome in outcomes] == [-offset for offset in range(100)]

    run_on(main(), loop)


def test_closing_map_half_way_gives_back_all_but_what_was_read() -> None:
    async def main() -> None:
        engine = Engine(coroutine, Options(emit="partition"))
        records = iter(numbered("abc" * 10))
        read = 0
        async with aclosing(engine.map(records)) as outcomes:
            async for _ in outcomes:
                if read == 7:
                    break  # this one is not counted as read: nobody came back for the next
                read += 1
        taken = 30 - len(list(records))
        assert offsets(engine.given_back) == list(range(7, taken))
        again = [outcome.record.offset async for outcome in engine.map(engine.given_back)]
        assert again == list(range(7, taken))

    run_on(main())


def test_a_reader_that_stops_after_a_failure_does_not_have_to_hear_of_it() -> None:
    async def main(simulation: Simulation) -> None:
        async def function(record: Record) -> None:
            if record.offset == 2:
                await reading.wait()
                raise Terminal("no")

        reading = asyncio.Event()
        engine = Engine(function, Options(order="partition"), watch=False)
        async with aclosing(engine.map(numbered("abc"))) as outcomes:
            async for _ in outcomes:
                reading.set()
                await until(lambda: not engine._busy)
                break
        assert offsets(engine.given_back) == [0, 1, 2]

    simulate(main, seed=1)  # objects to exceptions that nobody retrieves


def test_map_raises_what_ended_the_run_after_what_was_finished_before() -> None:
    async def main() -> None:
        async def function(record: Record) -> None:
            if record.offset == 2:
                await until(lambda: len(read) == 2)
                raise Terminal("no")

        read = []
        engine = Engine(function)
        with pytest.raises(RecordError, match="offset 2"):  # noqa: PT012 reading is the statement
            async for outcome in engine.map(numbered("abc")):
                read.append(outcome.record.offset)  # noqa: PERF401 the function looks at it
        assert sorted(read) == [0, 1]
        assert offsets(engine.given_back) == [2]

    run_on(main())


def test_records_left_in_an_iterator_are_not_touched_by_a_drained_run() -> None:
    async def main() -> None:
        records = iter(numbered("abc" * 10_000))
        engine = Engine(coroutine)
        done = []
        async for outcome in engine.map(records):
            done.append(outcome)
            engine.drain()
        assert offsets(done) + offsets(records) == list(range(30_000))

    run_on(main())


def test_an_iterable_without_end_leaves_the_loop_its_turns() -> None:
    async def main() -> None:
        unhashable: Any = []
        engine = Engine(coroutine, Options(on_error="drop"))

        async def read() -> None:
            async for _ in engine.map(Record(offset, unhashable) for offset in count()):
                pytest.fail("all are dropped")

        reading = asyncio.create_task(read())
        await until(lambda: engine.statistics().dropped > 10_000)
        engine.drain()
        await reading

    run_on(main())


def test_a_channel_remembers_no_more_than_was_read_of_the_last_put() -> None:
    async def main() -> None:
        channel = Channel()

        async def read() -> list[int]:
            return [len(channel.read) async for _ in channel]

        reading = asyncio.create_task(read())
        for record in numbered("abc"):
            await channel.put([Outcome(record)] * 3)
        channel.close()
        assert await reading == [0, 1, 2] * 3

    run_on(main())
