"""Functions that never return or cancel themselves: nothing is lost."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.engine.bad_parts import (
    BAD,
    POLICIES,
    Policy,
    answer,
)
from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    nothing_is_lost,
    numbered,
    offsets,
    run_on,
    until,
)
from thulawa.engine import Engine, Options, Retry, WorkItem
from thulawa.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    SelfCancelled,
    ThulawaError,
)
from thulawa.testing import Simulation, simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_a_coroutine_that_never_returns_is_retried_then_handled_by_on_error(
    policy: Policy,
) -> None:
    calls = 0

    async def function(record: WorkItem) -> int:
        nonlocal calls
        if record.offset == BAD:
            calls += 1
            await asyncio.get_running_loop().create_future()
        return record.offset

    async def main(simulation: Simulation) -> None:
        retry = Retry(attempts=3, first=1, jitter=0)
        error = await answer(
            policy,
            function,
            AttemptTimedOut,
            options={"timeout": 2, "retry": retry},
            watchdog=False,
        )
        assert simulation.now() == pytest.approx(2 + 1 + 2 + 2 + 2)
        assert policy == "drop" or "after 3 attempts" in str(error)

    simulate(main, seed=1)
    assert calls == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_deadline_ends_all_attempts(policy: Policy) -> None:
    async def function(record: WorkItem) -> int:
        if record.offset == BAD:
            await asyncio.get_running_loop().create_future()
        return record.offset

    async def main(simulation: Simulation) -> None:
        options = {"timeout": 2, "deadline": 5, "retry": Retry(attempts=9, first=0)}
        await answer(policy, function, DeadlineExceeded, options=options, watchdog=False)
        assert simulation.now() == pytest.approx(5)

    simulate(main, seed=1)


@pytest.mark.parametrize(
    ("policy", "loop"), [*((policy, "asyncio") for policy in POLICIES), ("column", "uvloop")]
)
def test_a_thread_that_never_returns_blocks_its_own_key_only(policy: Policy, loop: str) -> None:
    over = threading.Event()
    calls: list[object] = []

    def function(record: WorkItem) -> int:
        calls.append(record.key)
        if record.offset == BAD:
            over.wait(timeout=60)
        return record.offset

    # the bad one is the last of its key, so that nothing waits behind it
    records = [
        WorkItem(offset, "b" if offset in (1, BAD) else "ac"[offset % 2], offset)
        for offset in range(12)
    ]
    options = {"timeout": 0.5, "in_flight": 2}
    try:
        run_on(
            answer(
                policy,
                function,
                AttemptTimedOut,
                records=records,
                options=options,
                stop_timeout=0.05,
            ),
            loop,
        )
    finally:
        over.set()
    assert calls.count("b") == 2


def test_there_are_never_more_threads_than_calls_may_be_in_flight() -> None:
    over = threading.Event()
    before = threading.active_count()

    def function(record: WorkItem) -> None:
        over.wait(timeout=60)

    async def main() -> None:
        options = Options(timeout=0.01, on_error="drop", in_flight=3)
        engine = Engine(function, options, stop_timeout=0.05)
        source, sink = FakeSource(numbered(range(1_000))), FakeSink()
        with pytest.raises(ThulawaError, match="did not stop"):
            await engine.run(source, sink)
        assert threading.active_count() - before <= 3
        assert engine.statistics().abandoned == 3
        nothing_is_lost(engine, source, sink, dropped=engine.statistics().dropped)

    try:
        run_on(main())
    finally:
        over.set()


def test_idle_threads_are_reused_and_end_with_the_run() -> None:
    before = set(threading.enumerate())
    over = threading.Event()

    def function(record: WorkItem) -> None:
        if record.offset == 0:
            over.wait(timeout=60)

    async def main() -> None:
        options = Options(timeout=0.5, on_error="drop", in_flight=1)
        engine = Engine(function, options)
        source, sink = FakeSource(numbered(range(50)), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: engine.statistics().dropped)
        over.set()
        await until(lambda: engine.statistics().arrived == 50 and not engine.statistics().in_flight)
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert workers._threads == 1
        assert workers._running == workers._abandoned == set()
        engine.drain()
        await running
        nothing_is_lost(engine, source, sink, dropped=engine.statistics().dropped)
        await until(lambda: set(threading.enumerate()) <= before)

    run_on(main())


async def cancel_me_now() -> None:
    raise asyncio.CancelledError


async def cancel_me_and_wait() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


async def cancel_another_and_wait_for_it() -> None:
    other = asyncio.ensure_future(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


SELF_CANCELLING = [cancel_me_now, cancel_me_and_wait, cancel_another_and_wait_for_it]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("cancel", SELF_CANCELLING)
def test_a_function_that_cancels_itself_is_handled_by_on_error(
    cancel: Callable[[], Any], policy: Policy, loop: str
) -> None:
    async def function(record: WorkItem) -> int:
        if record.offset == BAD:
            await cancel()
        await asyncio.sleep(0)
        return record.offset

    error = run_on(answer(policy, function, SelfCancelled, options={"in_flight": 1}), loop)
    assert policy == "drop" or "cancelled itself" in str(error)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_late_cancellation_affects_no_other_record(loop: str, times: int) -> None:
    async def function(record: WorkItem) -> int:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "what an earlier call did is still felt"
        if record.offset % 3:
            for _ in range(times):
                task.cancel()
        else:
            await asyncio.sleep(0)
        return record.offset

    async def main() -> None:
        sink = FakeSink()
        await Engine(function, Options(in_flight=2)).run(FakeSource(numbered("abc" * 20)), sink)
        assert sink.results() == list(range(60))

    run_on(main(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cancellation_that_comes_late_does_not_end_the_worker(loop: str) -> None:
    """A function that stores its task and cancels it long after the call has ended."""
    tasks: list[asyncio.Task[Any]] = []

    async def function(record: WorkItem) -> int:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        return record.offset

    class Source(FakeSource):
        async def read(self, records: int, size: int) -> Sequence[WorkItem]:
            await until(lambda: len(sink.outcomes) == len(self.taken))
            chunk = await super().read(records, size)
            if tasks:
                tasks[-1].cancel()
                if len(tasks) % 2:
                    await until(lambda: not tasks[-1].cancelling())
            return chunk  # else the next call begins in the iteration of the cancellation

    async def main() -> None:
        engine = Engine(function, Options(in_flight=1))
        await engine.run(Source(numbered("a" * 6), chunk=1), sink)
        assert sink.results() == list(range(6))
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert len(workers._idle) <= 2, "who rests no more is still on the list"

    sink = FakeSink()
    run_on(main(), loop)


def test_an_error_raised_on_a_timeout_inside_the_function_counts() -> None:
    """asyncio.timeout() cancels the task from inside and uncancels it: no self-cancellation."""

    async def function(record: WorkItem) -> int:
        if record.offset == BAD:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(3600)
        return record.offset

    error = run_on(answer("dead_letter", function, TimeoutError))
    assert type(error) is TimeoutError


def test_a_run_ends_when_a_function_cancels_it() -> None:
    async def main() -> None:
        async def function(record: WorkItem) -> None:
            if record.offset == BAD:
                running.cancel()
                await asyncio.sleep(3600)

        engine = Engine(function)
        source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        with suppress(asyncio.CancelledError):
            await running
        assert running.cancelled()
        assert BAD in offsets(engine.unfinished)
        nothing_is_lost(engine, source, sink)

    run_on(main())
