"""Functions that raise or return what they must not: `on_error` applies, nothing is lost."""

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.engine.bad_parts import (
    BAD,
    KINDS,
    POLICIES,
    Kind,
    Policy,
    answer,
    async_of,
    bad_at,
    good,
    of_kind,
    raising,
)
from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    nothing_is_lost,
    numbered,
    offsets,
    run_on,
)
from thulawa.engine import Batch, Engine, Options, Retry, WorkItem
from thulawa.errors import (
    RecordError,
    SelfCancelled,
    ThulawaError,
    WrongResult,
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_raises_is_handled_by_on_error(
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
def test_an_argument_function_that_raises_is_handled_by_on_error(
    policy: Policy, kind: Kind
) -> None:
    def argument(record: WorkItem) -> WorkItem:
        if record.offset == BAD:
            raise KeyError("no such field")
        return record

    function = of_kind(kind, bad_at(lambda: None))
    error = run_on(answer(policy, function, RecordError, argument=argument))
    assert policy == "drop" or "no such field" in str(error)


class Panic(BaseException):
    """A BaseException that is no Exception, as Rust extensions raise."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("panic", [Panic("at the disco"), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_exception_is_handled_by_on_error(
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
    assert BAD in offsets(engine.unfinished)
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
    assert BAD in offsets(engine.unfinished)
    nothing_is_lost(engine, source, sink)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_ends_when_its_loop_goes_on_after_a_coroutine_exits(loop: str) -> None:
    engine = Engine(async_of(bad_at(raising(SystemExit(3)))))
    source, sink = FakeSource(numbered("abc" * 4)), FakeSink()
    with closing(LOOPS[loop]()) as lasting:
        running = lasting.create_task(engine.run(source, sink))
        with pytest.raises(SystemExit):
            lasting.run_until_complete(running)
        with pytest.raises(ThulawaError, match="raised SystemExit"):
            lasting.run_until_complete(asyncio.wait_for(running, 20))
    assert BAD in offsets(engine.unfinished)
    nothing_is_lost(engine, source, sink)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plain_function_that_returns_a_coroutine_is_a_clear_error(policy: Policy) -> None:
    records = numbered("abc" * 4)
    function = bad_at(lambda: good(records[0]))
    error = run_on(answer(policy, function, WrongResult, records=records))
    assert policy == "drop" or "async def" in str(error)


def check(result: object) -> None:
    if result == "bad":
        raise ValueError("not a number")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_the_check_rejects_is_handled_by_on_error(policy: Policy, kind: Kind) -> None:
    function = bad_at(lambda: "bad")
    error = run_on(answer(policy, of_kind(kind, function), WrongResult, check=check))
    if policy != "drop":
        assert "not a number" in str(error)
        assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_check_is_called_with_each_result_of_a_batch(policy: Policy) -> None:
    async def function(records: list[WorkItem]) -> list[object]:
        return ["bad" if record.offset == BAD else 1 for record in records]

    options = {"batch": Batch(size=3)}
    error = run_on(answer(policy, function, WrongResult, options=options, check=check))
    assert policy == "drop" or "not a number" in str(error)


WRONG_ANSWERS: dict[str, Callable[[list[WorkItem]], object]] = {
    "too few": lambda records: [1] * (len(records) - 1),
    "too many": lambda records: [1] * (len(records) + 1),
    "no list": lambda records: None,
    "a text of the right length": lambda records: "x" * len(records),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wrong", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_a_wrong_result_of_a_batch_is_handled_by_on_error(
    wrong: Callable[[list[WorkItem]], object], policy: Policy
) -> None:
    async def function(records: list[WorkItem]) -> object:
        return wrong(records)

    async def main() -> None:
        engine = Engine(function, Options(on_error=policy, batch=Batch(size=2)))
        source, sink = FakeSource(numbered("aabb")), FakeSink()
        if policy == "fail":
            with pytest.raises(WrongResult, match="batch"):
                await engine.run(source, sink)
            assert offsets(engine.unfinished) == [0, 1, 2, 3]
            return
        await engine.run(source, sink)
        assert engine.statistics().failed == 4
        assert len(sink.outcomes) == (0 if policy == "drop" else 4)
        assert all(isinstance(outcome.error, WrongResult) for outcome in sink.outcomes)

    run_on(main())
