"""The driver on real event loops: kinds of functions, contexts, several runs."""

import asyncio
import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    coroutine,
    numbered,
    offsets,
    plain,
    run_on,
    until,
)
from thulawa.engine import (
    Adaptive,
    Batch,
    Engine,
    Options,
    Quarantine,
    Rate,
    WorkItem,
)
from thulawa.errors import (
    Quarantined,
    RecordError,
    Terminal,
    ThulawaError,
)
from thulawa.testing import Simulation, simulate

# --- functions of every kind


async def scaled_coroutine(factor: int, record: WorkItem) -> int:
    await asyncio.sleep(0)
    return factor * record.offset


def scaled(factor: int, record: WorkItem) -> int:
    return factor * record.offset


class Called:
    async def __call__(self, record: WorkItem) -> int:
        await asyncio.sleep(0)
        return -record.offset

    async def method(self, record: WorkItem) -> int:
        return await self(record)


class CalledPlainly:
    def __call__(self, record: WorkItem) -> int:
        return -record.offset

    def method(self, record: WorkItem) -> int:
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
        assert engine.unfinished == []

    run_on(main(), loop)


@pytest.mark.parametrize("function", [coroutine, plain])
def test_a_plain_function_runs_on_threads_and_a_coroutine_function_does_not(
    function: Callable[..., Any],
) -> None:
    seen: set[int] = set()

    @functools.wraps(function)
    async def async_spy(record: WorkItem) -> None:
        seen.add(threading.get_ident())

    def spy(record: WorkItem) -> None:
        seen.add(threading.get_ident())

    async def main() -> None:
        engine = Engine(async_spy if function is coroutine else spy)
        await engine.run(FakeSource(numbered("abc")), FakeSink())

    run_on(main())
    assert (threading.get_ident() in seen) == (function is coroutine)


def test_a_plain_function_has_no_more_calls_in_flight_than_threads() -> None:
    lock = threading.Lock()
    all_in = threading.Barrier(3)
    now = peak = 0

    def function(record: WorkItem) -> None:
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


def test_the_argument_of_a_call_can_be_computed_from_its_record() -> None:
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


# --- contexts


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_function_sees_the_context_of_its_run_and_no_other_calls(kind: str) -> None:
    def look(record: WorkItem) -> str:
        seen = TENANT.get()
        TENANT.set(f"record {record.offset}")
        return seen

    async def look_async(record: WorkItem) -> str:
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

    async def function(record: WorkItem) -> None:
        variable.set(Incomparable())

    async def main() -> None:
        variable.set(Incomparable())
        sink = FakeSink()
        await Engine(function, Options(in_flight=2)).run(FakeSource(numbered("abc" * 10)), sink)
        assert len(sink.outcomes) == 30

    run_on(main())


# --- runs one after the other, and beside each other


def test_an_engine_keeps_what_it_has_learned_for_its_next_run() -> None:
    calls: list[int] = []

    async def function(record: WorkItem) -> None:
        calls.append(record.offset)
        raise Terminal("no")

    async def main() -> None:
        engine = Engine(
            function, Options(on_error="dead_letter", quarantine=Quarantine(after=2, seconds=3600))
        )
        await engine.run(FakeSource(numbered("aa")), FakeSink())
        sink = FakeSink()
        await engine.run(FakeSource([WorkItem(2, "a"), WorkItem(3, "b")]), sink)
        assert calls == [0, 1, 3]
        assert isinstance(sink.outcomes[0].error, Quarantined)
        assert engine.statistics().arrived == 2, "counts are of the last run"

    run_on(main())


def test_a_rate_holds_over_two_runs() -> None:
    async def main(simulation: Simulation) -> None:
        engine = Engine(coroutine, Options(rate=Rate(per_second=1)), watchdog=False)
        for _ in range(2):
            await engine.run(FakeSource(numbered("abc")), FakeSink())
        assert simulation.now() == pytest.approx(5.0)

    simulate(main, seed=1)


def test_a_run_after_a_failed_one_starts_afresh() -> None:
    async def main() -> None:
        broken = True

        async def function(record: WorkItem) -> None:
            if broken and record.offset == 1:
                raise Terminal("no")

        engine = Engine(function)
        source, sink = FakeSource(numbered("abab")), FakeSink()
        with pytest.raises(RecordError):
            await engine.run(source, sink)
        broken = False
        again = FakeSource(engine.unfinished)
        await engine.run(again, sink)
        assert offsets(sink.outcomes) == [0, 1, 2, 3]
        assert engine.unfinished == []

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


def test_an_engine_rejects_a_second_run_at_the_same_time() -> None:
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


# --- threads under load


def test_twenty_thousand_plain_calls_keep_the_order_of_their_keys() -> None:
    seen: dict[object, list[int]] = defaultdict(list)
    busy: set[object] = set()
    overlaps: list[object] = []

    def function(record: WorkItem) -> int:
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
