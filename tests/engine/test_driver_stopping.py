"""The driver when a run is drained or cancelled."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    Stubborn,
    coroutine,
    nothing_is_lost,
    numbered,
    offsets,
    plain,
    run_on,
    until,
)
from thulawa.engine import (
    Engine,
    Options,
    Outcome,
    Retry,
    WorkItem,
)
from thulawa.errors import Retriable
from thulawa.testing import Simulation, simulate


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("function", [coroutine, plain])
def test_a_drained_run_ends_although_its_source_does_not(
    function: Callable[..., Any], loop: str
) -> None:
    async def main() -> None:
        engine = Engine(function)
        source, sink = FakeSource(numbered("abc" * 10), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: len(source.taken) == 30)
        engine.drain()
        engine.drain()
        await running
        engine.drain()
        assert offsets(sink.outcomes) == list(range(30))
        assert engine.unfinished == []

    run_on(main(), loop)


def test_a_function_may_drain_its_own_run() -> None:
    async def main() -> None:
        async def function(record: WorkItem) -> None:
            if record.offset == 5:
                engine.drain()

        engine = Engine(function)
        source, sink = FakeSource(numbered("abc" * 10), chunk=1), FakeSink()
        await engine.run(source, sink)
        assert 5 < len(source.taken) < 30
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_records_that_a_cancelled_source_returns_are_not_lost() -> None:
    class Late(FakeSource):
        async def read(self, records: int, size: int) -> Sequence[WorkItem]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(self.delay)
            return await super().read(records, size)

        delay = 0.0

    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = Late(numbered("abc")), FakeSink()
        source.delay = 0.01  # nothing arrived, so the drain is over long before
        running = asyncio.create_task(engine.run(source, sink))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(3):  # further drains do not cancel it again
            engine.drain()
            await asyncio.sleep(0)
        await running
        assert offsets(engine.unfinished) == [0, 1, 2]
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_a_drain_before_the_run_has_begun_is_not_lost() -> None:
    async def main() -> None:
        async def function(record: WorkItem) -> None:
            await asyncio.sleep(0)

        engine = Engine(function)
        source, sink = FakeSource(numbered(range(300))), FakeSink()
        task = asyncio.ensure_future(engine.run(source, sink))
        engine.drain()
        await task
        assert sink.outcomes == []
        nothing_is_lost(engine, source, sink)

    run_on(main())


@pytest.mark.parametrize("who", ["function", "source", "sink", "all"])
def test_a_cancelled_run_ends_within_its_stop_timeout_whichever_part_ignores_it(who: str) -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        class Source(FakeSource):
            async def read(self, records: int, size: int) -> Sequence[WorkItem]:
                if self.taken and who in ("source", "all"):
                    await stubborn.stay()
                return await super().read(records, size)

        class Sink(FakeSink):
            async def put(self, outcomes: list[Outcome]) -> None:
                if who in ("sink", "all"):
                    await stubborn.stay()
                await super().put(outcomes)

        async def function(record: WorkItem) -> None:
            if record.offset and who in ("function", "all"):
                await stubborn.stay()

        engine = Engine(function, stop_timeout=3.0, watchdog=False)
        source, sink = Source(numbered("abc"), chunk=2), Sink()
        running = asyncio.create_task(engine.run(source, sink))
        await stubborn.entered.wait()
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert simulation.now() == pytest.approx(1.0 + 3.0)
        nothing_is_lost(engine, source, sink)
        stubborn.over.set()
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left over"

    for seed in range(5):
        simulate(main, seed=seed)


def test_a_second_cancellation_ends_a_run_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        async def function(record: WorkItem) -> None:
            await stubborn.stay()

        engine = Engine(function, stop_timeout=60.0, watchdog=False)
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await stubborn.entered.wait()
        running.cancel()
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert simulation.now() == 1.0
        assert offsets(engine.unfinished) == [0, 1, 2, 3]
        stubborn.over.set()

    simulate(main, seed=1)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cancelled_run_does_not_wait_for_a_thread_that_does_not_return(loop: str) -> None:
    over = threading.Event()

    def function(record: WorkItem) -> None:
        over.wait(timeout=60)

    async def main() -> None:
        engine = Engine(function, stop_timeout=0.05)
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: engine.statistics().in_flight == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not over.is_set()
        assert offsets(engine.unfinished) == [0, 1, 2, 3]

    try:
        run_on(main(), loop)
    finally:
        over.set()


@pytest.mark.parametrize("loop", LOOPS)
def test_threads_that_return_while_a_run_ends_lose_nothing(loop: str) -> None:
    """The result comes after the run has ended and before the unfinished records are counted."""
    entered, over = threading.Semaphore(0), threading.Event()

    def function(record: WorkItem) -> None:
        entered.release()
        over.wait(timeout=60)

    async def main() -> None:
        engine = Engine(function)
        source, sink = FakeSource(numbered("aabbcc")), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: engine.statistics().in_flight == 3)
        for _ in range(3):
            entered.acquire()
        running.cancel()
        over.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert offsets(engine.unfinished) == [0, 1, 2, 3, 4, 5]

    run_on(main(), loop)


def test_outcomes_that_a_cancelled_sink_accepted_are_not_unfinished() -> None:
    async def main() -> None:
        entered = asyncio.Event()

        class Sink(FakeSink):
            async def put(self, outcomes: list[Outcome]) -> None:
                entered.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
                await super().put(outcomes)

        engine = Engine(coroutine)
        source, sink = FakeSource(numbered("abc"), open_end=True), Sink()
        running = asyncio.create_task(engine.run(source, sink))
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sink.outcomes
        nothing_is_lost(engine, source, sink)

    run_on(main())


@pytest.mark.parametrize("function", [coroutine, plain])
@pytest.mark.parametrize("order", ["key", "partition", "none", "emit"])
def test_nothing_is_lost_wherever_a_run_is_cancelled(
    function: Callable[..., Any], order: Any
) -> None:
    async def main() -> None:
        cancelled = 0
        for turns in range(60):
            engine = Engine(function, Options(order=order, in_flight=4))
            source, sink = FakeSource(numbered("abac" * 3), chunk=2), FakeSink()
            running = asyncio.create_task(engine.run(source, sink))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            if turns % 3:
                running.cancel()
            await asyncio.wait([running])
            cancelled += running.cancelled()
            nothing_is_lost(engine, source, sink)
        assert cancelled > 10
        if function is coroutine:
            assert cancelled < 60, "the run is longer than this test thinks"

    run_on(main())


def test_a_run_that_is_cancelled_leaves_no_task_behind() -> None:
    async def main() -> None:
        engine = Engine(coroutine)
        for turns in range(30):
            running = asyncio.create_task(
                engine.run(FakeSource(numbered("abac" * 3), open_end=True), FakeSink())
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            mine = {asyncio.current_task()}
            assert {task for task in asyncio.all_tasks() if "wait_for" not in repr(task)} <= mine

    run_on(main())


def test_a_run_that_is_cancelled_leaves_no_timer_behind() -> None:
    async def main(simulation: Simulation) -> None:
        async def function(record: WorkItem) -> None:
            raise Retriable("later")

        options = Options(retry=Retry(attempts=2, first=1000, longest=1000))
        engine = Engine(function, options, watchdog=False)
        running = asyncio.create_task(engine.run(FakeSource(numbered("a")), FakeSink()))
        await asyncio.sleep(1)
        assert engine.statistics().parked == 1
        running.cancel()
        await asyncio.wait([running])
        assert all(timer.cancelled() for timer in simulation.loop._scheduled)

    simulate(main, seed=1)
