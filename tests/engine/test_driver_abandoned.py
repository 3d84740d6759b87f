"""Abandoned calls: they keep their key and permit until they have stopped."""

import asyncio
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

from tests.engine.driver_parts import (
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
    Batch,
    Engine,
    Options,
    Retry,
    WorkItem,
)
from thulawa.engine.queues import KeyQueue
from thulawa.engine.threads import ThreadWorkers
from thulawa.engine.work_items import Ticket
from thulawa.engine.workers import CoroutineWorkers
from thulawa.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    ThulawaError,
)
from thulawa.testing import Simulation, simulate


@pytest.mark.parametrize("batch", [None, Batch(size=2)])
def test_no_call_of_a_key_begins_before_an_abandoned_one_has_stopped(
    batch: Batch | None,
) -> None:
    """A transaction that is rolled back is over before the next one of its key begins."""
    log: list[str] = []

    async def function(argument: WorkItem | list[WorkItem]) -> list[None]:
        first = argument[0] if isinstance(argument, list) else argument
        log.append(f"begin {first.key}")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            log.append(f"rolled back {first.key}")
            raise
        return []

    async def main(simulation: Simulation) -> None:
        log.clear()
        options = Options(
            timeout=1, retry=Retry(attempts=2, first=0), on_error="dead_letter", batch=batch
        )
        sink = FakeSink()
        await Engine(function, options, watchdog=False).run(FakeSource(numbered("aabb")), sink)
        assert len(sink.outcomes) == 4
        for key in "ab":
            mine = [line for line in log if line.endswith(key)]
            assert mine == [f"begin {key}", f"rolled back {key}"] * (len(mine) // 2)
        assert all(isinstance(outcome.error, AttemptTimedOut) for outcome in sink.outcomes)

    for seed in range(10):
        simulate(main, seed=seed)


def test_no_call_of_a_key_begins_while_an_abandoned_one_runs_on_a_thread() -> None:
    busy: set[object] = set()
    overlaps: list[object] = []
    calls: list[int] = []

    def function(record: WorkItem) -> int:
        calls.append(record.offset)
        if record.key in busy:
            overlaps.append(record.key)
        busy.add(record.key)
        time.sleep(0.1 if calls.count(0) == 1 and record.offset == 0 else 0)
        busy.discard(record.key)
        return record.offset

    async def main() -> None:
        options = Options(
            timeout=0.03, retry=Retry(attempts=9, first=0), on_error="dead_letter", in_flight=4
        )
        engine = Engine(function, options)
        sink = FakeSink()
        await engine.run(FakeSource(numbered("aaa")), sink)
        assert sink.results() == [0, 1, 2]
        assert calls == [0, 0, 1, 2], "an attempt was used up without a call"
        assert engine.statistics().timeouts == 1

    run_on(main())
    assert overlaps == []


@pytest.mark.parametrize("plain", [False, True])
def test_a_key_whose_call_does_not_stop_is_seen_in_the_statistics_and_warned_about(
    plain: bool,  # noqa: FBT001 drawn
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = threading.Event()

    def stay(record: WorkItem) -> None:
        if record.key == "a":
            over.wait(60)

    async def stay_on_the_loop(record: WorkItem) -> None:
        while record.key == "a" and not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def main() -> None:
        options = Options(timeout=0.05, on_error="drop", in_flight=3)
        engine = Engine(
            stay if plain else stay_on_the_loop, options, watchdog=False, stop_timeout=0.1
        )
        source, sink = FakeSource(numbered("a" + "b" * 50), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: len(sink.outcomes) == 50 and caplog.messages)
        now = engine.statistics()
        assert (now.in_flight, now.abandoned, now.in_flight_records, now.keys) == (1, 1, 0, 1)
        assert "the call of offset 0, cancelled 0.1 s ago, has not stopped" in caplog.messages[0]
        over.set()
        await until(lambda: not engine.statistics().abandoned)
        engine.drain()
        await running
        assert engine.unfinished == []

    try:
        run_on(main())
    finally:
        over.set()


def test_a_retry_fails_at_its_deadline_though_its_abandoned_call_does_not_stop() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        async def function(record: WorkItem) -> None:
            await stubborn.stay()

        options = Options(
            timeout=1, deadline=5, retry=Retry(attempts=9, first=0), on_error="dead_letter"
        )
        engine = Engine(function, options, watchdog=False, stop_timeout=100)
        source, sink = FakeSource(numbered("a"), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: sink.outcomes)
        assert simulation.now() == pytest.approx(5, abs=0.1)
        assert isinstance(sink.outcomes[0].error, DeadlineExceeded)
        assert sink.outcomes[0].attempts == 1
        stubborn.over.set()
        engine.drain()
        await running

    simulate(main, seed=1)


def test_a_call_that_ignores_cancellation_blocks_its_own_key_only() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()
        calls: dict[str, int] = defaultdict(int)

        async def function(record: WorkItem) -> str:
            assert isinstance(record.key, str)
            calls[record.key] += 1
            if record.key == "a":
                await stubborn.stay()
            return "done"

        options = Options(timeout=1, on_error="dead_letter", in_flight=3)
        source, sink = FakeSource(numbered("a" * 5 + "b" * 50)), FakeSink()
        engine = Engine(function, options, watchdog=False, stop_timeout=1.0)
        with pytest.raises(ThulawaError, match="1 calls timed out and did not stop"):
            await engine.run(source, sink)
        assert calls == {"a": 1, "b": 50}, "two calls of one key at once"
        assert [outcome.record.offset for outcome in sink.outcomes if not outcome.ok] == [0]
        assert offsets(engine.unfinished) == [1, 2, 3, 4]
        nothing_is_lost(engine, source, sink)
        stubborn.over.set()
        await asyncio.sleep(0)

    simulate(main, seed=1)


def test_abandoned_calls_leave_no_state_behind() -> None:
    async def main(simulation: Simulation) -> None:
        async def function(record: WorkItem) -> None:
            await asyncio.sleep(simulation.random.choice((0, 0.5, 1.0, 1.5)))

        options = Options(
            timeout=1, retry=Retry(attempts=3, first=0), on_error="drop", in_flight=10
        )
        engine = Engine(function, options, watchdog=False)
        source = FakeSource(numbered(list(range(20)) * 10), open_end=True)
        running = asyncio.create_task(engine.run(source, FakeSink()))
        await asyncio.sleep(1000)
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert [len(each) for each in (workers._cancelled_starts, workers._running)] == [0, 0]
        assert engine._run._reminders == {}
        assert engine.statistics().timeouts > 10
        engine.drain()
        await running

    for seed in range(10):
        simulate(main, seed=seed)


class Reports:
    """Records the reports of workers."""

    def __init__(self) -> None:
        self.results: list[tuple[Ticket, int, Any]] = []
        self.ends: list[tuple[Ticket, int]] = []

    def succeeded(self, results: list[tuple[Ticket, int, Any]]) -> None:
        self.results += results

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        raise error

    def call_stopped(self, ticket: Ticket, attempt: int) -> None:
        self.ends.append((ticket, attempt))

    def exited(self, error: BaseException) -> None:
        raise error


def ticket_of(record: WorkItem) -> Ticket:
    ticket = Ticket(record, KeyQueue(record.key, record))
    ticket.attempt = 1
    return ticket


def test_a_call_that_is_abandoned_before_it_begins_does_not_begin() -> None:
    async def main() -> None:
        reports = Reports()
        workers = CoroutineWorkers(coroutine, lambda ticket: ticket.record, reports)
        first, second = map(ticket_of, numbered("ab"))
        workers.start([first, second])
        workers.abandon(first, 1)
        await until(lambda: reports.results)
        await workers.close(1)
        assert reports.results == [(second, 1, -1)]
        assert reports.ends == [(first, 1)]

    run_on(main())


def test_a_plain_call_that_is_abandoned_before_it_begins_does_not_begin() -> None:
    async def main() -> None:
        reports = Reports()
        workers = ThreadWorkers(plain, lambda ticket: ticket.record, reports, "plain")
        first, second = map(ticket_of, numbered("ab"))
        workers._threads = 100  # no thread takes the job
        workers.start([first])
        workers.abandon(first, 1)
        workers._threads = 0
        called: list[int] = []
        workers._function = lambda record: called.append(record.offset)
        workers.start([second])
        await until(lambda: reports.results and reports.ends)
        await workers.close(1)
        assert called == [1]
        assert reports.ends == [(first, 1)]

    run_on(main())


def test_no_call_begins_once_the_workers_are_closed() -> None:
    async def main() -> None:
        called = []

        async def swallow(record: WorkItem) -> None:
            called.append(record.offset)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

        workers = CoroutineWorkers(swallow, lambda ticket: ticket.record, Reports())
        first, second = map(ticket_of, numbered("ab"))
        workers.start([first])
        await until(lambda: called)
        workers.start([second])
        assert await workers.close(10) == 0
        assert called == [0]

    run_on(main())


def test_abandoning_a_call_that_has_ended_has_no_effect() -> None:
    async def main() -> None:
        reports = Reports()
        workers = CoroutineWorkers(coroutine, lambda ticket: ticket.record, reports)
        first, second = map(ticket_of, numbered("ab"))
        workers.start([first])
        await until(lambda: reports.results)
        workers.abandon(first, 1)  # it has ended and was not reported yet
        workers.start([second])
        await until(lambda: len(reports.results) == 2)
        assert reports.ends == []
        assert not workers._cancelled_starts
        await workers.close(1)

    run_on(main())


def test_too_many_calls_that_do_not_stop_end_the_run() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        async def function(record: WorkItem) -> None:
            await stubborn.stay()

        options = Options(timeout=1, on_error="drop", in_flight=3)
        engine = Engine(function, options, watchdog=False)
        source, sink = FakeSource(numbered(range(100))), FakeSink()
        with pytest.raises(ThulawaError, match="did not stop"):
            await engine.run(source, sink)
        nothing_is_lost(engine, source, sink, dropped=engine.statistics().dropped)
        stubborn.over.set()

    simulate(main, seed=1)
