"""The driver on real event loops: functions, resources, ends good and bad."""

import asyncio
import functools
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

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
from thulawa.core.errors import (
    AttemptTimedOut,
    DeadlineExceeded,
    Quarantined,
    RecordError,
    Retriable,
    Terminal,
    ThulawaError,
)
from thulawa.engine import (
    Adaptive,
    Batch,
    Bounds,
    Engine,
    Options,
    Outcome,
    Quarantine,
    Rate,
    Record,
    Retry,
)
from thulawa.engine.model import Ticket
from thulawa.engine.queues import KeyQueue
from thulawa.engine.sources import Channel
from thulawa.engine.threads import ThreadWorkers
from thulawa.engine.workers import CoroutineWorkers
from thulawa.testing import Simulation, simulate

# --- functions of every kind


async def coroutine(record: Record) -> int:
    await asyncio.sleep(0)
    return -record.offset


def plain(record: Record) -> int:
    return -record.offset


async def scaled_coroutine(factor: int, record: Record) -> int:
    await asyncio.sleep(0)
    return factor * record.offset


def scaled(factor: int, record: Record) -> int:
    return factor * record.offset


class Called:
    async def __call__(self, record: Record) -> int:
        await asyncio.sleep(0)
        return -record.offset

    async def method(self, record: Record) -> int:
        return await self(record)


class CalledPlainly:
    def __call__(self, record: Record) -> int:
        return -record.offset

    def method(self, record: Record) -> int:
        return -record.offset


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "coroutine function": coroutine,
    "plain function": plain,
    "partial of a coroutine function": functools.partial(scaled_coroutine, -1),
    "partial of a plain function": functools.partial(scaled, -1),
    "partial of a partial": functools.partial(functools.partial(scaled_coroutine), -1),
    "object with async call": Called(),
    "object with plain call": CalledPlainly(),
    "coroutine method": Called().method,
    "plain method": CalledPlainly().method,
    "lambda": lambda record: -record.offset,
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_every_kind_run(function: Callable[..., Any], loop: str) -> None:
    async def main() -> None:
        sink = FakeSink()
        engine = Engine(function)
        await engine.run(FakeSource(numbered("abcab" * 20)), sink)
        assert sink.results() == [-offset for offset in range(100)]
        assert engine.given_back == []

    run_on(main(), loop)


@pytest.mark.parametrize("function", [coroutine, plain])
def test_a_plain_function_runs_on_threads_and_a_coroutine_function_does_not(
    function: Callable[..., Any],
) -> None:
    seen: set[int] = set()

    @functools.wraps(function)
    async def async_spy(record: Record) -> None:
        seen.add(threading.get_ident())

    def spy(record: Record) -> None:
        seen.add(threading.get_ident())

    async def main() -> None:
        engine = Engine(async_spy if function is coroutine else spy)
        await engine.run(FakeSource(numbered("abc")), FakeSink())

    run_on(main())
    assert (threading.get_ident() in seen) == (function is coroutine)


def test_a_plain_function_gets_no_more_calls_at_once_than_there_are_threads() -> None:
    lock = threading.Lock()
    all_in = threading.Barrier(3)
    now = peak = 0

    def function(record: Record) -> None:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
        all_in.wait(timeout=20)
        with lock:
            now -= 1

    async def main(options: Options) -> None:
        engine = Engine(function, options, threads=3)
        await engine.run(FakeSource(numbered(range(30))), FakeSink())

    run_on(main(Options(in_flight=100)))
    run_on(main(Options(adaptive=Adaptive(initial=50, minimum=40))))
    assert peak == 3


def test_the_argument_of_a_call_can_be_made_of_its_record() -> None:
    async def double(value: int) -> int:
        return value * 2

    def add_up(values: list[int]) -> list[int]:
        return [sum(values)] * len(values)

    async def main() -> None:
        sink = FakeSink()
        await Engine(double, argument=lambda record: record.value).run(
            FakeSource(numbered("ab")), sink
        )
        assert sink.results() == [0, 2]
        sink = FakeSink()
        options = Options(batch=Batch(size=2))
        await Engine(add_up, options, argument=lambda record: record.value).run(
            FakeSource(numbered("aaaa")), sink
        )
        assert sink.results() == [1, 1, 5, 5]

    run_on(main())


# --- resources


class Resource:
    """Counts how often it was opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator["Resource"]:
        self.opened += 1
        try:
            yield self
        finally:
            await asyncio.sleep(0)
            self.closed += 1


def test_a_resource_is_opened_once_handed_over_and_closed() -> None:
    resource = Resource()

    async def function(record: Record, opened: Resource) -> bool:
        return opened is resource and opened.opened > opened.closed

    async def main() -> None:
        async with Engine(function, resource=resource) as engine:
            for _ in range(2):
                sink = FakeSink()
                await engine.run(FakeSource(numbered("abc")), sink)
                assert sink.results() == [True] * 3
            assert (resource.opened, resource.closed) == (1, 0)
        assert (resource.opened, resource.closed) == (1, 1)
        async with engine:
            assert (resource.opened, resource.closed) == (2, 1)

    run_on(main())


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_a_resource_is_closed_after_the_calls_of_a_run_that(end: str) -> None:
    resource = Resource()
    still_open = []

    async def function(record: Record, opened: Resource) -> None:
        try:
            if end == "fails" and record.offset == 1:
                raise Terminal("no")
            await asyncio.sleep(3600)
        finally:
            still_open.append(opened.closed == 0)

    async def main() -> None:
        async with Engine(function, resource=resource) as engine:
            running = asyncio.create_task(engine.run(FakeSource(numbered("ab")), FakeSink()))
            if end == "is cancelled":
                await until(lambda: engine.statistics().in_flight == 2)
                running.cancel()
            await running

    with pytest.raises((RecordError, asyncio.CancelledError)):
        run_on(main())
    assert still_open == [True, True]
    assert (resource.opened, resource.closed) == (1, 1)


def test_an_engine_with_a_resource_must_be_entered() -> None:
    async def function(record: Record, opened: Resource) -> None: ...

    async def main() -> None:
        engine = Engine(function, resource=Resource())
        with pytest.raises(ThulawaError, match="async with"):
            await engine.run(FakeSource(numbered("a")), FakeSink())

    run_on(main())


def test_a_resource_that_does_not_open_fails_before_anything_is_taken() -> None:
    class Broken(nullcontext[None]):
        async def __aenter__(self) -> None:
            raise OSError("no route")

    async def main() -> None:
        async with Engine(coroutine, resource=Broken):
            pytest.fail("entered")

    with pytest.raises(OSError, match="no route"):
        run_on(main())


# --- drain


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
        assert engine.given_back == []

    run_on(main(), loop)


def test_a_function_may_drain_its_own_run() -> None:
    async def main() -> None:
        async def function(record: Record) -> None:
            if record.offset == 5:
                engine.drain()

        engine = Engine(function)
        source, sink = FakeSource(numbered("abc" * 10), chunk=1), FakeSink()
        await engine.run(source, sink)
        assert 5 < len(source.taken) < 30
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_records_that_come_although_the_source_was_told_to_stop_are_not_lost() -> None:
    class Late(FakeSource):
        async def take(self, records: int, size: int) -> Sequence[Record]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(self.delay)
            return await super().take(records, size)

        delay = 0.0

    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = Late(numbered("abc")), FakeSink()
        source.delay = 0.01  # all that was taken in, nothing, is finished long before
        running = asyncio.create_task(engine.run(source, sink))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(3):  # once it has been told it is not disturbed again
            engine.drain()
            await asyncio.sleep(0)
        await running
        assert offsets(engine.given_back) == [0, 1, 2]
        nothing_is_lost(engine, source, sink)

    run_on(main())


# --- cancel


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


@pytest.mark.parametrize("who", ["function", "source", "sink", "all"])
def test_a_cancelled_run_ends_within_its_patience_whoever_is_stubborn(who: str) -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        class Source(FakeSource):
            async def take(self, records: int, size: int) -> Sequence[Record]:
                if self.taken and who in ("source", "all"):
                    await stubborn.stay()
                return await super().take(records, size)

        class Sink(FakeSink):
            async def put(self, outcomes: list[Outcome]) -> None:
                if who in ("sink", "all"):
                    await stubborn.stay()
                await super().put(outcomes)

        async def function(record: Record) -> None:
            if record.offset and who in ("function", "all"):
                await stubborn.stay()

        engine = Engine(function, patience=3.0, watch=False)
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

        async def function(record: Record) -> None:
            await stubborn.stay()

        engine = Engine(function, patience=60.0, watch=False)
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await stubborn.entered.wait()
        running.cancel()
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert simulation.now() == 1.0
        assert offsets(engine.given_back) == [0, 1, 2, 3]
        stubborn.over.set()

    simulate(main, seed=1)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cancelled_run_does_not_wait_for_a_thread_that_does_not_return(loop: str) -> None:
    over = threading.Event()

    def function(record: Record) -> None:
        over.wait(timeout=60)

    async def main() -> None:
        engine = Engine(function, patience=0.05)
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: engine.statistics().in_flight == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not over.is_set()
        assert offsets(engine.given_back) == [0, 1, 2, 3]

    try:
        run_on(main(), loop)
    finally:
        over.set()


@pytest.mark.parametrize("loop", LOOPS)
def test_threads_that_answer_while_a_run_ends_take_nothing_away(loop: str) -> None:
    """The answer comes after the end was decided and before what is left is counted."""
    entered, over = threading.Semaphore(0), threading.Event()

    def function(record: Record) -> None:
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
        assert offsets(engine.given_back) == [0, 1, 2, 3, 4, 5]

    run_on(main(), loop)


def test_what_a_sink_has_taken_although_cancelled_is_not_given_back() -> None:
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
        async def function(record: Record) -> None:
            raise Retriable("later")

        options = Options(retry=Retry(attempts=2, first=1000, longest=1000))
        engine = Engine(function, options, watch=False)
        running = asyncio.create_task(engine.run(FakeSource(numbered("a")), FakeSink()))
        await asyncio.sleep(1)
        assert engine.statistics().parked == 1
        running.cancel()
        await asyncio.wait([running])
        assert all(timer.cancelled() for timer in simulation.loop._scheduled)

    simulate(main, seed=1)


# --- sources and sinks that break


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


# --- map


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


# --- contexts

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_function_sees_the_context_of_its_run_and_no_other_calls(kind: str) -> None:
    def look(record: Record) -> str:
        seen = TENANT.get()
        TENANT.set(f"record {record.offset}")
        return seen

    async def look_async(record: Record) -> str:
        seen = look(record)
        await asyncio.sleep(0)
        assert TENANT.get() == f"record {record.offset}"
        return seen

    async def main() -> None:
        TENANT.set("acme")
        sink = FakeSink()
        engine = Engine(look_async if kind == "coroutine" else look, Options(in_flight=3))
        await engine.run(FakeSource(numbered("abc" * 100)), sink)
        assert sink.results() == ["acme"] * 300
        assert TENANT.get() == "acme"

    run_on(main())


def test_context_values_that_cannot_be_compared_do_no_harm() -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    variable: ContextVar[Incomparable] = ContextVar("variable")

    async def function(record: Record) -> None:
        variable.set(Incomparable())

    async def main() -> None:
        variable.set(Incomparable())
        sink = FakeSink()
        await Engine(function, Options(in_flight=2)).run(FakeSource(numbered("abc" * 10)), sink)
        assert len(sink.outcomes) == 30

    run_on(main())


# --- runs one after the other, and beside each other


def test_what_an_engine_has_learned_it_keeps_for_its_next_run() -> None:
    calls: list[int] = []

    async def function(record: Record) -> None:
        calls.append(record.offset)
        raise Terminal("no")

    async def main() -> None:
        engine = Engine(
            function, Options(on_error="dead_letter", quarantine=Quarantine(after=2, seconds=3600))
        )
        await engine.run(FakeSource(numbered("aa")), FakeSink())
        sink = FakeSink()
        await engine.run(FakeSource([Record(2, "a"), Record(3, "b")]), sink)
        assert calls == [0, 1, 3]
        assert isinstance(sink.outcomes[0].error, Quarantined)
        assert engine.statistics().taken == 2, "counts are of the last run"

    run_on(main())


def test_a_rate_holds_over_two_runs() -> None:
    async def main(simulation: Simulation) -> None:
        engine = Engine(coroutine, Options(rate=Rate(per_second=1)), watch=False)
        for _ in range(2):
            await engine.run(FakeSource(numbered("abc")), FakeSink())
        assert simulation.now() == pytest.approx(5.0)

    simulate(main, seed=1)


def test_a_run_after_a_failed_one_starts_afresh() -> None:
    async def main() -> None:
        broken = True

        async def function(record: Record) -> None:
            if broken and record.offset == 1:
                raise Terminal("no")

        engine = Engine(function)
        source, sink = FakeSource(numbered("abab")), FakeSink()
        with pytest.raises(RecordError):
            await engine.run(source, sink)
        broken = False
        again = FakeSource(engine.given_back)
        await engine.run(again, sink)
        assert offsets(sink.outcomes) == [0, 1, 2, 3]
        assert engine.given_back == []

    run_on(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_several_engines_run_on_one_loop(loop: str) -> None:
    async def main() -> None:
        sinks = [FakeSink() for _ in range(6)]
        engines = [Engine(coroutine if n % 2 else plain) for n in range(6)]
        async with asyncio.TaskGroup() as group:
            for engine, sink in zip(engines, sinks, strict=True):
                group.create_task(engine.run(FakeSource(numbered("abc" * 50)), sink))
        for sink in sinks:
            assert sink.results() == [-offset for offset in range(150)]

    run_on(main(), loop)


def test_one_engine_refuses_two_runs_at_a_time() -> None:
    async def main() -> None:
        engine = Engine(coroutine)
        source, sink = FakeSource(numbered("abc"), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: len(sink.outcomes) == 3)
        with pytest.raises(ThulawaError, match="running already"):
            await engine.run(FakeSource([]), FakeSink())
        engine.drain()
        await running

    run_on(main())


# --- abandoned calls


@pytest.mark.parametrize("batch", [None, Batch(size=2)])
def test_no_call_of_a_key_begins_before_an_abandoned_one_has_given_way(
    batch: Batch | None,
) -> None:
    """A transaction that is rolled back is over before the next one of its key begins."""
    log: list[str] = []

    async def function(argument: Record | list[Record]) -> list[None]:
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
        await Engine(function, options, watch=False).run(FakeSource(numbered("aabb")), sink)
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

    def function(record: Record) -> int:
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

    def stay(record: Record) -> None:
        if record.key == "a":
            over.wait(60)

    async def stay_on_the_loop(record: Record) -> None:
        while record.key == "a" and not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def main() -> None:
        options = Options(timeout=0.05, on_error="drop", in_flight=3)
        engine = Engine(stay if plain else stay_on_the_loop, options, watch=False, patience=0.1)
        source, sink = FakeSource(numbered("a" + "b" * 50), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: len(sink.outcomes) == 50 and caplog.messages)
        now = engine.statistics()
        assert (now.in_flight, now.abandoned, now.in_flight_records, now.keys) == (1, 1, 0, 1)
        assert "the call of offset 0 was told to stop" in caplog.messages[0]
        over.set()
        await until(lambda: not engine.statistics().abandoned)
        engine.drain()
        await running
        assert engine.given_back == []

    try:
        run_on(main())
    finally:
        over.set()


def test_a_record_to_be_retried_is_given_up_at_its_deadline_though_its_call_does_not_stop() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        async def function(record: Record) -> None:
            await stubborn.stay()

        options = Options(
            timeout=1, deadline=5, retry=Retry(attempts=9, first=0), on_error="dead_letter"
        )
        engine = Engine(function, options, watch=False, patience=100)
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


def test_a_call_that_does_not_give_way_costs_its_own_key_alone() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()
        calls: dict[str, int] = defaultdict(int)

        async def function(record: Record) -> str:
            assert isinstance(record.key, str)
            calls[record.key] += 1
            if record.key == "a":
                await stubborn.stay()
            return "done"

        options = Options(timeout=1, on_error="dead_letter", in_flight=3)
        source, sink = FakeSource(numbered("a" * 5 + "b" * 50)), FakeSink()
        engine = Engine(function, options, watch=False, patience=1.0)
        with pytest.raises(ThulawaError, match="1 calls timed out and did not stop"):
            await engine.run(source, sink)
        assert calls == {"a": 1, "b": 50}, "two calls of one key at once"
        assert [outcome.record.offset for outcome in sink.outcomes if not outcome.ok] == [0]
        assert offsets(engine.given_back) == [1, 2, 3, 4]
        nothing_is_lost(engine, source, sink)
        stubborn.over.set()
        await asyncio.sleep(0)

    simulate(main, seed=1)


def test_calls_that_were_abandoned_leave_nothing_behind() -> None:
    async def main(simulation: Simulation) -> None:
        async def function(record: Record) -> None:
            await asyncio.sleep(simulation.random.choice((0, 0.5, 1.0, 1.5)))

        options = Options(
            timeout=1, retry=Retry(attempts=3, first=0), on_error="drop", in_flight=10
        )
        engine = Engine(function, options, watch=False)
        source = FakeSource(numbered(list(range(20)) * 10), open_end=True)
        running = asyncio.create_task(engine.run(source, FakeSink()))
        await asyncio.sleep(1000)
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert [len(each) for each in (workers._void, workers._running)] == [0, 0]
        assert engine._run._reminders == {}
        assert engine.statistics().timeouts > 10
        engine.drain()
        await running

    for seed in range(10):
        simulate(main, seed=seed)


class Reports:
    """Takes what workers report."""

    def __init__(self) -> None:
        self.answers: list[tuple[Ticket, int, Any]] = []
        self.ends: list[tuple[Ticket, int]] = []

    def succeeded(self, answers: list[tuple[Ticket, int, Any]]) -> None:
        self.answers += answers

    def failed(self, ticket: Ticket, attempt: int, error: Exception) -> None:
        raise error

    def gone(self, ticket: Ticket, attempt: int) -> None:
        self.ends.append((ticket, attempt))

    def exited(self, error: BaseException) -> None:
        raise error


def ticket_of(record: Record) -> Ticket:
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
        await until(lambda: reports.answers)
        await workers.close(1)
        assert reports.answers == [(second, 1, -1)]
        assert reports.ends == [(first, 1)]

    run_on(main())


def test_a_plain_call_that_is_abandoned_before_it_begins_does_not_begin() -> None:
    async def main() -> None:
        reports = Reports()
        workers = ThreadWorkers(plain, lambda ticket: ticket.record, reports, "plain")
        first, second = map(ticket_of, numbered("ab"))
        workers._threads = 100  # as if all were slow to come
        workers.start([first])
        workers.abandon(first, 1)
        workers._threads = 0
        called: list[int] = []
        workers._function = lambda record: called.append(record.offset)
        workers.start([second])
        await until(lambda: reports.answers and reports.ends)
        await workers.close(1)
        assert called == [1]
        assert reports.ends == [(first, 1)]

    run_on(main())


def test_no_call_begins_once_the_workers_are_closed() -> None:
    async def main() -> None:
        called = []

        async def swallow(record: Record) -> None:
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


def test_a_call_that_is_abandoned_after_it_has_ended_is_forgotten() -> None:
    async def main() -> None:
        reports = Reports()
        workers = CoroutineWorkers(coroutine, lambda ticket: ticket.record, reports)
        first, second = map(ticket_of, numbered("ab"))
        workers.start([first])
        await until(lambda: reports.answers)
        workers.abandon(first, 1)  # it ended, and the scheduler did not know yet
        workers.start([second])
        await until(lambda: len(reports.answers) == 2)
        assert reports.ends == []
        assert not workers._void
        await workers.close(1)

    run_on(main())


def test_too_many_calls_that_do_not_stop_end_the_run() -> None:
    async def main(simulation: Simulation) -> None:
        stubborn = Stubborn()

        async def function(record: Record) -> None:
            await stubborn.stay()

        options = Options(timeout=1, on_error="drop", in_flight=3)
        engine = Engine(function, options, watch=False)
        source, sink = FakeSource(numbered(range(100))), FakeSink()
        with pytest.raises(ThulawaError, match="did not stop"):
            await engine.run(source, sink)
        nothing_is_lost(engine, source, sink, dropped=engine.statistics().dropped)
        stubborn.over.set()

    simulate(main, seed=1)


# --- threads under load


def test_twenty_thousand_plain_calls_keep_the_order_of_their_keys() -> None:
    seen: dict[object, list[int]] = defaultdict(list)
    busy: set[object] = set()
    overlaps: list[object] = []

    def function(record: Record) -> int:
        if record.key in busy:
            overlaps.append(record.key)
        busy.add(record.key)
        seen[record.key].append(record.offset)
        busy.discard(record.key)
        return record.offset

    async def main() -> None:
        source, sink = FakeSource(numbered([n % 97 for n in range(20_000)])), FakeSink()
        engine = Engine(function, Options(in_flight=16))
        await engine.run(source, sink)
        assert sink.results() == list(range(20_000))

    run_on(main())
    assert overlaps == []
    assert len(seen) == 97
    for offsets_of_key in seen.values():
        assert offsets_of_key == sorted(offsets_of_key)


def test_a_drain_before_the_run_has_begun_is_not_lost() -> None:
    async def main() -> None:
        async def function(record: Record) -> None:
            await asyncio.sleep(0)

        engine = Engine(function)
        source, sink = FakeSource(numbered(range(300))), FakeSink()
        task = asyncio.ensure_future(engine.run(source, sink))
        engine.drain()
        await task
        assert sink.outcomes == []
        nothing_is_lost(engine, source, sink)

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


def test_leaving_the_engine_stops_its_run_before_the_resource_is_closed() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        events.append("closed")

    async def main() -> None:
        async def function(record: Record, resource: None) -> None:
            if record.offset:
                try:
                    await asyncio.sleep(60)
                finally:
                    events.append("stopped")

        async with Engine(function, resource=resource) as engine:
            reading = engine.map(numbered("abc"))
            assert (await anext(reading)).record.offset == 0
        assert events == ["stopped", "stopped", "closed"]
        # the reader has not come back for more, so nobody has said that the first one is safe
        assert offsets(engine.given_back) == [0, 1, 2]
        await reading.aclose()

    run_on(main())
