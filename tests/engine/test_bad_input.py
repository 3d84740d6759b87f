"""Bad input and bad functions: a clear error or the policy's answer, and nothing lost."""

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from typing import Any, Literal, Self

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
    BadKey,
    BadLane,
    ConfigurationError,
    DeadlineExceeded,
    RecordError,
    SelfCancelled,
    ThulawaError,
    WrongResult,
)
from thulawa.engine import Batch, Engine, Options, Record, Retry, Sharing
from thulawa.testing import Simulation, simulate

Policy = Literal["fail", "drop", "dead_letter", "column"]
POLICIES: tuple[Policy, ...] = ("fail", "drop", "dead_letter", "column")
BAD = 4
Kind = Literal["on the loop", "on a thread"]
KINDS: tuple[Kind, ...] = ("on the loop", "on a thread")


async def good(record: Record) -> int:
    await asyncio.sleep(0)
    return record.offset


async def answer(
    policy: Policy,
    function: Callable[..., Any],
    error: type[Exception],
    *,
    records: list[Record] | None = None,
    options: dict[str, Any] | None = None,
    **engine_options: Any,
) -> Exception:
    """Run twelve records of which one is bad; check the policy's answer; give the error."""
    engine = Engine(function, Options(on_error=policy, **(options or {})), **engine_options)
    source, sink = FakeSource(records or numbered("abc" * 4)), FakeSink()
    if policy == "fail":
        with pytest.raises(error) as raised:
            await engine.run(source, sink)
        assert BAD in offsets(engine.given_back)
        nothing_is_lost(engine, source, sink)
        return raised.value
    await engine.run(source, sink)
    assert engine.given_back == []
    failed = [outcome for outcome in sink.outcomes if not outcome.ok]
    if policy == "drop":
        assert failed == []
        assert engine.statistics().dropped == engine.statistics().failed == 1
        assert offsets(sink.outcomes) == [n for n in range(12) if n != BAD]
        return error("dropped")
    assert offsets(failed) == [BAD]
    assert offsets(sink.outcomes) == list(range(12))
    assert failed[0].error is not None
    if issubclass(error, RecordError) and error is not RecordError:
        assert isinstance(failed[0].error, error)
    return failed[0].error


def bad_at(make: Callable[[], object]) -> Callable[[Record], Any]:
    """Make a plain function that does something bad with one record."""

    def function(record: Record) -> object:
        return make() if record.offset == BAD else record.offset

    return function


def raising(error: BaseException) -> Callable[[], object]:
    def make() -> object:
        raise error

    return make


def of_kind(kind: Kind, function: Callable[[Record], Any]) -> Callable[[Record], Any]:
    return function if kind == "on a thread" else async_of(function)


def async_of(function: Callable[[Record], Any]) -> Callable[[Record], Any]:
    @functools.wraps(function)
    async def wrapped(record: Record) -> Any:
        await asyncio.sleep(0)
        return function(record)

    return wrapped


# --- keys, lanes and offsets


class HashRaises:
    def __hash__(self) -> int:
        raise ValueError("no")


class EqualToNothing:
    """As pandas' NA: whether it equals itself cannot be said."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __eq__

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


BAD_KEYS: dict[str, Any] = {
    "a list": [],
    "a dictionary": {},
    "a set": set(),
    "a tuple with a list": (1, []),
    "NaN": float("nan"),
    "a tuple with NaN": ("a", (1, float("nan"))),
    "a decimal NaN": Decimal("nan"),
    "a signalling NaN": Decimal("snan"),
    "a hash that raises": HashRaises(),
    "an equality that cannot be told": EqualToNothing(),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_bad_key_gets_the_policys_answer(key: Any, policy: Policy) -> None:
    records = numbered("abc" * 4)
    records[BAD].key = key
    error = run_on(answer(policy, good, BadKey, records=records))
    assert isinstance(error, BadKey)
    if policy != "drop":
        assert error.offset == BAD
        assert "use a key of" in str(error)


@pytest.mark.parametrize(
    ("order", "emit"), [("key", "finished"), ("key", "partition"), ("emit", "finished")]
)
def test_a_bad_key_does_not_upset_the_order(order: Any, emit: Any) -> None:
    records = numbered("abc" * 4)
    records[BAD].key = BAD_KEYS["a list"]
    options = {"order": order, "emit": emit}
    error = run_on(answer("dead_letter", good, BadKey, records=records, options=options))
    assert isinstance(error, BadKey)


@pytest.mark.parametrize("order", ["partition", "none"])
def test_a_key_that_nothing_is_ordered_by_may_be_anything(order: Any) -> None:
    async def main() -> None:
        sink = FakeSink()
        await Engine(good, Options(order=order)).run(FakeSource(numbered([[], {}, "a"])), sink)
        assert sink.results() == [0, 1, 2]

    run_on(main())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lane", [1, 7, -1])
def test_a_lane_that_does_not_exist_gets_the_policys_answer(lane: int, policy: Policy) -> None:
    records = numbered("abc" * 4)
    records[BAD].lane = lane
    error = run_on(answer(policy, good, BadLane, records=records))
    assert policy == "drop" or f"no lane {lane}" in str(error)


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("sequence", [(0, 1, 2, 2, 3), (0, 1, 2, 1, 3), (5, 6, 7, -1, 8)])
def test_offsets_that_do_not_rise_end_the_run_and_nothing_is_lost(
    sequence: tuple[int, ...], chunk: int
) -> None:
    async def main() -> None:
        engine = Engine(good)
        records = [Record(offset, key) for offset, key in zip(sequence, "abcab", strict=True)]
        source, sink = FakeSource(records, chunk=chunk), FakeSink()
        with pytest.raises(ValueError, match="offsets must rise"):
            await engine.run(source, sink)
        delivered = [outcome.record for outcome in sink.outcomes]
        assert {id(r) for r in [*delivered, *engine.given_back]} == {id(r) for r in source.taken}
        assert len(delivered) + len(engine.given_back) == len(source.taken)

    run_on(main())


@pytest.mark.parametrize(
    ("stray", "named"),
    [
        ({"key": "a"}, "not dict: {'key': 'a'}"),
        ((2, "a", "x"), "not tuple"),
        (None, "not NoneType"),
    ],
    ids=repr,
)
def test_what_is_no_record_ends_the_run_by_name_and_nothing_is_lost(stray: Any, named: str) -> None:
    async def main() -> None:
        engine = Engine(good, Options(name="locate"))
        records = [Record(0, "a"), Record(1, "b"), stray]
        message = rf"locate: records must be made with Record\(offset, key, value, ...\), {named}"
        with pytest.raises(ThulawaError, match=message):
            async for _ in engine.map(records):
                pass
        assert engine.given_back == records

    run_on(main())


def test_a_cache_that_breaks_is_no_cache_and_nothing_is_lost() -> None:
    class Broken(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise ConnectionError("no cache")

    async def main() -> None:
        options = Options(sharing=Sharing(by=lambda record: record.key))
        engine = Engine(good, options, cache=Broken())
        source, sink = FakeSource(numbered("abcabc")), FakeSink()
        await engine.run(source, sink)
        assert len(sink.outcomes) == 6
        nothing_is_lost(engine, source, sink)

    run_on(main())


def test_a_cache_without_a_question_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sharing"):
        Engine(good, cache={})


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"function": "x"}, "the function must be callable, not 'x'"),
        ({"options": {"in_flight": 3}}, "not a dict"),
        ({"threads": 0}, "threads must be a whole number from 1 on, not 0"),
        ({"threads": "8"}, "threads must be a whole number"),
        ({"patience": -1.0}, "patience is seconds, not negative"),
        ({"patience": "5s"}, "patience is seconds"),
    ],
    ids=repr,
)
def test_an_engine_refuses_parts_that_cannot_work(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Engine(**{"function": good, **parts})


# --- functions that raise


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_raises_gets_the_policys_answer(
    policy: Policy, loop: str, kind: Kind
) -> None:
    function = bad_at(raising(ZeroDivisionError("by nothing")))
    error = run_on(answer(policy, of_kind(kind, function), RecordError), loop)
    if policy == "fail":
        assert isinstance(error, RecordError)
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.offset, error.key) == (BAD, "b")
        assert "ZeroDivisionError: by nothing" in str(error)
    elif policy != "drop":
        assert isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_cannot_be_made_gets_the_policys_answer(
    policy: Policy, kind: Kind
) -> None:
    def argument(record: Record) -> Record:
        if record.offset == BAD:
            raise KeyError("no such field")
        return record

    function = of_kind(kind, bad_at(lambda: None))
    error = run_on(answer(policy, function, RecordError, argument=argument))
    assert policy == "drop" or "no such field" in str(error)


class Panic(BaseException):
    """What Rust extensions raise: no Exception."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("panic", [Panic("at the disco"), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_exception_gets_the_policys_answer_too(
    policy: Policy, panic: BaseException, kind: Kind
) -> None:
    function = bad_at(raising(panic))
    error = run_on(answer(policy, of_kind(kind, function), SelfCancelled))
    assert policy == "drop" or f"raised {type(panic).__name__}" in str(error)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_plain_function_that_exits_ends_the_run_and_nothing_is_lost(
    policy: Policy, stop: BaseException
) -> None:
    engine = Engine(bad_at(raising(stop)), Options(on_error=policy, retry=Retry(attempts=3)))
    source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
    with pytest.raises(ThulawaError, match=f"raised {type(stop).__name__}") as raised:
        run_on(engine.run(source, sink))
    assert raised.value.__cause__ is stop
    assert BAD in offsets(engine.given_back)
    nothing_is_lost(engine, source, sink)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_can_end_the_process_and_nothing_is_lost(
    policy: Policy, loop: str, stop: type[BaseException]
) -> None:
    engine = Engine(async_of(bad_at(raising(stop()))), Options(on_error=policy))
    source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
    with pytest.raises(stop):
        run_on(engine.run(source, sink), loop)
    assert BAD in offsets(engine.given_back)
    nothing_is_lost(engine, source, sink)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_outlives_a_coroutine_that_exits_sees_its_run_end(loop: str) -> None:
    engine = Engine(async_of(bad_at(raising(SystemExit(3)))))
    source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
    with closing(LOOPS[loop]()) as lasting:
        running = lasting.create_task(engine.run(source, sink))
        with pytest.raises(SystemExit):
            lasting.run_until_complete(running)
        with pytest.raises(ThulawaError, match="raised SystemExit"):
            lasting.run_until_complete(asyncio.wait_for(running, 20))
    assert BAD in offsets(engine.given_back)
    nothing_is_lost(engine, source, sink)


# --- functions that return what they must not


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plain_function_that_returns_a_coroutine_is_told_so(policy: Policy) -> None:
    records = numbered("abc" * 4)
    function = bad_at(lambda: good(records[0]))
    error = run_on(answer(policy, function, WrongResult, records=records))
    assert policy == "drop" or "async def" in str(error)


def check(result: object) -> None:
    if result == "bad":
        raise ValueError("not a number")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_the_check_refuses_gets_the_policys_answer(
    policy: Policy, kind: Kind
) -> None:
    function = bad_at(lambda: "bad")
    error = run_on(answer(policy, of_kind(kind, function), WrongResult, check=check))
    if policy != "drop":
        assert "not a number" in str(error)
        assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_check_is_made_of_each_result_of_a_batch(policy: Policy) -> None:
    async def function(records: list[Record]) -> list[object]:
        return ["bad" if record.offset == BAD else 1 for record in records]

    options = {"batch": Batch(size=3)}
    error = run_on(answer(policy, function, WrongResult, options=options, check=check))
    assert policy == "drop" or "not a number" in str(error)


WRONG_ANSWERS: dict[str, Callable[[list[Record]], object]] = {
    "too few": lambda records: [1] * (len(records) - 1),
    "too many": lambda records: [1] * (len(records) + 1),
    "no list": lambda records: None,
    "a text of the right length": lambda records: "x" * len(records),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrong", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_a_wrong_answer_to_a_batch_gets_the_policys_answer(
    wrong: Callable[[list[Record]], object], policy: Policy
) -> None:
    async def function(records: list[Record]) -> object:
        return wrong(records)

    async def main() -> None:
        engine = Engine(function, Options(on_error=policy, batch=Batch(size=2)))
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        if policy == "fail":
            with pytest.raises(WrongResult, match="batch"):
                await engine.run(source, sink)
            assert offsets(engine.given_back) == [0, 1, 2, 3]
            return
        await engine.run(source, sink)
        assert engine.statistics().failed == 4
        assert len(sink.outcomes) == (0 if policy == "drop" else 4)
        assert all(isinstance(outcome.error, WrongResult) for outcome in sink.outcomes)

    run_on(main())


# --- functions that block the loop


class Warned(logging.Handler):
    """Notes warnings from whatever thread they come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.come.set()

    def __enter__(self) -> Self:
        logging.getLogger("thulawa.engine").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("thulawa.engine").removeHandler(self)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_function_that_blocks_the_loop_is_warned_about_while_it_does(loop: str) -> None:
    def innermost(record: Record) -> bool:
        return warned.come.wait(timeout=20)  # blocks until it is warned about, or for good

    async def blocks_the_loop(record: Record) -> bool:
        return innermost(record)

    with Warned() as warned:
        sink = FakeSink()
        run_on(Engine(blocks_the_loop).run(FakeSource(numbered("a")), sink), loop)
    assert sink.results() == [True], "no warning came while it blocked"
    (message,) = warned.messages
    assert "blocks_the_loop blocks the event loop" in message
    assert "threading.py:" in message, "the line at which it blocks"


def test_a_blocking_call_is_warned_about_once_and_the_next_one_again() -> None:
    async def blocks(record: Record) -> None:
        warned.come.clear()
        assert warned.come.wait(timeout=20)
        time.sleep(0.4)  # noqa: ASYNC251 the point

    with Warned() as warned:
        run_on(Engine(blocks).run(FakeSource(numbered("aa")), FakeSink()))
    assert len(warned.messages) == 2


def test_a_loop_that_is_merely_busy_is_not_warned_about() -> None:
    spun = 0.0

    async def spin(record: Record) -> None:
        nonlocal spun
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        spun += 0.002

    with Warned() as warned:
        options = Options(in_flight=500)
        run_on(Engine(spin, options).run(FakeSource(numbered(range(500))), FakeSink()))
    assert spun > 0.9
    assert warned.messages == []


def test_a_plain_function_may_block_as_it_likes() -> None:
    def blocks(record: Record) -> None:
        time.sleep(0.6)

    with Warned() as warned:
        run_on(Engine(blocks).run(FakeSource(numbered("a")), FakeSink()))
    assert warned.messages == []


# --- functions that never return


@pytest.mark.parametrize("policy", POLICIES)
def test_a_coroutine_that_never_returns_is_retried_then_gets_the_policys_answer(
    policy: Policy,
) -> None:
    calls = 0

    async def function(record: Record) -> int:
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
            watch=False,
        )
        assert simulation.now() == pytest.approx(2 + 1 + 2 + 2 + 2)
        assert policy == "drop" or "after 3 attempts" in str(error)

    simulate(main, seed=1)
    assert calls == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_deadline_ends_all_attempts(policy: Policy) -> None:
    async def function(record: Record) -> int:
        if record.offset == BAD:
            await asyncio.get_running_loop().create_future()
        return record.offset

    async def main(simulation: Simulation) -> None:
        options = {"timeout": 2, "deadline": 5, "retry": Retry(attempts=9, first=0)}
        await answer(policy, function, DeadlineExceeded, options=options, watch=False)
        assert simulation.now() == pytest.approx(5)

    simulate(main, seed=1)


@pytest.mark.parametrize(
    ("policy", "loop"), [*((policy, "asyncio") for policy in POLICIES), ("column", "uvloop")]
)
def test_a_thread_that_never_returns_costs_its_own_key_alone(policy: Policy, loop: str) -> None:
    over = threading.Event()
    calls: list[object] = []

    def function(record: Record) -> int:
        calls.append(record.key)
        if record.offset == BAD:
            over.wait(timeout=60)
        return record.offset

    # the bad one is the last of its key, so that nothing waits behind it
    records = [
        Record(offset, "b" if offset in (1, BAD) else "ac"[offset % 2], offset)
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
                patience=0.05,
            ),
            loop,
        )
    finally:
        over.set()
    assert calls.count("b") == 2


def test_there_are_never_more_threads_than_calls_may_be_in_flight() -> None:
    over = threading.Event()
    before = threading.active_count()

    def function(record: Record) -> None:
        over.wait(timeout=60)

    async def main() -> None:
        options = Options(timeout=0.01, on_error="drop", in_flight=3)
        engine = Engine(function, options, patience=0.05)
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


def test_threads_that_come_back_are_used_again_and_end_with_the_run() -> None:
    before = set(threading.enumerate())
    over = threading.Event()

    def function(record: Record) -> None:
        if record.offset == 0:
            over.wait(timeout=60)

    async def main() -> None:
        options = Options(timeout=0.5, on_error="drop", in_flight=1)
        engine = Engine(function, options)
        source, sink = FakeSource(numbered(range(50)), open_end=True), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        await until(lambda: engine.statistics().dropped)
        over.set()
        await until(lambda: engine.statistics().taken == 50 and not engine.statistics().in_flight)
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert workers._threads == 1
        assert workers._running == workers._abandoned == set()
        engine.drain()
        await running
        nothing_is_lost(engine, source, sink, dropped=engine.statistics().dropped)
        await until(lambda: set(threading.enumerate()) <= before)

    run_on(main())


# --- functions that cancel themselves


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
def test_a_function_that_cancels_itself_gets_the_policys_answer(
    cancel: Callable[[], Any], policy: Policy, loop: str
) -> None:
    async def function(record: Record) -> int:
        if record.offset == BAD:
            await cancel()
        await asyncio.sleep(0)
        return record.offset

    error = run_on(answer(policy, function, SelfCancelled, options={"in_flight": 1}), loop)
    assert policy == "drop" or "cancelled itself" in str(error)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancellation_that_nobody_waited_for_hits_no_other_record(loop: str, times: int) -> None:
    async def function(record: Record) -> int:
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
    """A function that keeps its task and cancels it when the call is long over."""
    tasks: list[asyncio.Task[Any]] = []

    async def function(record: Record) -> int:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        return record.offset

    class Source(FakeSource):
        async def take(self, records: int, size: int) -> Sequence[Record]:
            await until(lambda: len(sink.outcomes) == len(self.taken))
            chunk = await super().take(records, size)
            if tasks:
                tasks[-1].cancel()
                if len(tasks) % 2:
                    await until(lambda: not tasks[-1].cancelling())
            return chunk  # else the next call begins in the turn of the cancellation

    async def main() -> None:
        engine = Engine(function, Options(in_flight=1))
        await engine.run(Source(numbered("a" * 6), chunk=1), sink)
        assert sink.results() == list(range(6))
        assert engine._run is not None
        workers: Any = engine._run._workers
        assert len(workers._idle) <= 2, "who rests no more is still on the list"

    sink = FakeSink()
    run_on(main(), loop)


def test_a_function_that_turns_its_time_out_into_an_error_is_believed() -> None:
    """asyncio.timeout() cancels the task from inside and takes it back: no self-cancellation."""

    async def function(record: Record) -> int:
        if record.offset == BAD:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(3600)
        return record.offset

    error = run_on(answer("dead_letter", function, TimeoutError))
    assert type(error) is TimeoutError


def test_a_run_ends_when_a_function_cancels_it() -> None:
    async def main() -> None:
        async def function(record: Record) -> None:
            if record.offset == BAD:
                running.cancel()
                await asyncio.sleep(3600)

        engine = Engine(function)
        source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
        running = asyncio.create_task(engine.run(source, sink))
        with suppress(asyncio.CancelledError):
            await running
        assert running.cancelled()
        assert BAD in offsets(engine.given_back)
        nothing_is_lost(engine, source, sink)

    run_on(main())
