"""One bad record or call among twelve, and what each error policy does with it."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.engine.driver_parts import (
    FakeSink,
    FakeSource,
    nothing_is_lost,
    numbered,
    offsets,
)
from thulawa.engine import Engine, Options, WorkItem
from thulawa.errors import RecordError

Policy = Literal["fail", "drop", "dead_letter", "column"]
POLICIES: tuple[Policy, ...] = ("fail", "drop", "dead_letter", "column")
BAD = 4
Kind = Literal["on the loop", "on a thread"]
KINDS: tuple[Kind, ...] = ("on the loop", "on a thread")


async def good(record: WorkItem) -> int:
    await asyncio.sleep(0)
    return record.offset


async def answer(
    policy: Policy,
    function: Callable[..., Any],
    error: type[Exception],
    *,
    records: list[WorkItem] | None = None,
    options: dict[str, Any] | None = None,
    **engine_options: Any,
) -> Exception:
    """Run twelve records of which one is bad; check the policy's effect; return the error."""
    engine = Engine(function, Options(on_error=policy, **(options or {})), **engine_options)
    source, sink = FakeSource(records or numbered("abc" * 4)), FakeSink()
    if policy == "fail":
        with pytest.raises(error) as raised:
            await engine.run(source, sink)
        assert BAD in offsets(engine.unfinished)
        nothing_is_lost(engine, source, sink)
        return raised.value
    await engine.run(source, sink)
    assert engine.unfinished == []
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


def bad_at(make: Callable[[], object]) -> Callable[[WorkItem], Any]:
    """Return a plain function that does something bad with one record."""

    def function(record: WorkItem) -> object:
        return make() if record.offset == BAD else record.offset

    return function


def raising(error: BaseException) -> Callable[[], object]:
    def make() -> object:
        raise error

    return make


def of_kind(kind: Kind, function: Callable[[WorkItem], Any]) -> Callable[[WorkItem], Any]:
    return function if kind == "on a thread" else async_of(function)


def async_of(function: Callable[[WorkItem], Any]) -> Callable[[WorkItem], Any]:
    @functools.wraps(function)
    async def wrapped(record: WorkItem) -> Any:
        await asyncio.sleep(0)
        return function(record)

    return wrapped
