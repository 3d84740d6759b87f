"""Opening and closing a resource are bounded in time, and happen in one task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from thulawa.engine import Engine, Options, WorkItem
from thulawa.errors import (
    ConfigurationError,
    ThulawaError,
)
from thulawa.testing import Simulation, simulate

OPTIONS = Options(name="locate", resource_timeout=30)


async def ask(record: WorkItem, client: Any) -> Any:
    return client


def entered(resource: Any) -> tuple[float, Exception | None, list[str]]:
    """Enter and exit an engine with a resource; return when that was done, and the error."""
    events: list[str] = []

    def make() -> AbstractAsyncContextManager[Any]:
        made: AbstractAsyncContextManager[Any] = resource(events)
        return made

    async def main(simulation: Simulation) -> tuple[float, Exception | None, list[str]]:
        try:
            async with Engine(ask, OPTIONS, resource=make):
                events.append("used")
        except ThulawaError as error:
            return simulation.now(), error, events
        return simulation.now(), None, events

    return simulate(main, seed=1)


@asynccontextmanager
async def never_opens(events: list[str]) -> AsyncIterator[None]:
    try:
        await asyncio.sleep(10_000)
    finally:
        events.append("cleaned up")
    yield


@asynccontextmanager
async def never_closes(events: list[str]) -> AsyncIterator[None]:
    yield
    await asyncio.sleep(10_000)


@asynccontextmanager
async def opens_late(events: list[str]) -> AsyncIterator[None]:
    try:
        await asyncio.sleep(30.5)
    except asyncio.CancelledError:
        events.append("not now")
    yield
    events.append("closed")


def test_a_resource_that_does_not_open_is_cancelled_and_named() -> None:
    now, error, events = entered(never_opens)
    assert (now, events) == (30, ["cleaned up"])
    assert "locate: its resource entered.<locals>.make did not open within 30 s" in str(error)
    assert "resource_timeout=" in str(error)


def test_a_resource_that_does_not_close_is_cancelled_and_named() -> None:
    now, error, events = entered(never_closes)
    assert (now, events) == (30, ["used"])
    assert "locate: its resource entered.<locals>.make did not close within 30 s" in str(error)


def test_a_resource_that_opens_after_its_timeout_is_closed_at_once() -> None:
    _, error, events = entered(opens_late)
    assert events == ["not now", "closed"]
    assert "did not open" in str(error)


def test_a_resource_is_opened_and_closed_in_one_task() -> None:
    @asynccontextmanager
    async def resource(events: list[str]) -> AsyncIterator[None]:
        begun = asyncio.current_task()
        async with asyncio.timeout(1_000):  # as cancel scopes are, it is bound to its task
            yield
        assert asyncio.current_task() is begun
        events.append("closed")

    async def main(simulation: Simulation) -> list[str]:
        events: list[str] = []
        engine = Engine(ask, OPTIONS, resource=lambda: resource(events))
        await asyncio.create_task(engine.__aenter__())
        await asyncio.create_task(engine.__aexit__(None, None, None))
        return events

    assert simulate(main, seed=1) == ["closed"]


def test_a_resource_is_closed_with_the_error_that_ends_its_use() -> None:
    told: list[BaseException] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            told.append(error)
            raise

    async def main(simulation: Simulation) -> None:
        async with Engine(ask, OPTIONS, resource=resource):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as ended:
        asyncio.run(main(None))  # type: ignore[arg-type] # it is not asked
    assert told == [ended.value]


def test_a_factory_of_no_async_context_manager_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="locate: resource=dict makes no async context"):
        Engine(ask, OPTIONS, resource=dict)  # type: ignore[arg-type]
