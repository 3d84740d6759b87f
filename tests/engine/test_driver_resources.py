"""Resources: opened once, passed to the function, closed when no call uses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from tests.engine.driver_parts import (
    FakeSink,
    FakeSource,
    coroutine,
    numbered,
    offsets,
    run_on,
    until,
)
from thulawa.engine import (
    Engine,
    WorkItem,
)
from thulawa.errors import (
    RecordError,
    Terminal,
    ThulawaError,
)


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


def test_a_resource_is_opened_once_passed_to_the_function_and_closed() -> None:
    resource = Resource()

    async def function(record: WorkItem, opened: Resource) -> bool:
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

    async def function(record: WorkItem, opened: Resource) -> None:
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
    async def function(record: WorkItem, opened: Resource) -> None: ...

    async def main() -> None:
        engine = Engine(function, resource=Resource())
        with pytest.raises(ThulawaError, match="async with"):
            await engine.run(FakeSource(numbered("a")), FakeSink())

    run_on(main())


def test_a_resource_that_does_not_open_fails_before_anything_is_read() -> None:
    class Broken(nullcontext[None]):
        async def __aenter__(self) -> None:
            raise OSError("no route")

    async def main() -> None:
        async with Engine(coroutine, resource=Broken):
            pytest.fail("entered")

    with pytest.raises(OSError, match="no route"):
        run_on(main())


def test_exiting_the_engine_stops_its_run_before_the_resource_is_closed() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        events.append("closed")

    async def main() -> None:
        async def function(record: WorkItem, resource: None) -> None:
            if record.offset:
                try:
                    await asyncio.sleep(60)
                finally:
                    events.append("stopped")

        async with Engine(function, resource=resource) as engine:
            reading = engine.map(numbered("abc"))
            assert (await anext(reading)).record.offset == 0
        assert events == ["stopped", "stopped", "closed"]
        # the reader has not asked for the next, so the first one is not delivered
        assert offsets(engine.unfinished) == [0, 1, 2]
        await reading.aclose()

    run_on(main())
