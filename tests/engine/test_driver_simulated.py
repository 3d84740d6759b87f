"""The real driver in virtual time: properties that hold for every seed.

Each run draws an engine, records, latencies, faults, a source and a sink (see `driver_world`).
Whatever happens to it, each record ends exactly once, in the order of the contract, within the
bounds. A failing run prints its seed; ``THULAWA_SEED`` replays it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import pytest

from tests.engine.driver_world import World
from thulawa.errors import RecordError
from thulawa.testing import Simulation, seeds, simulate

RUNS = 60

Scenario = Callable[[Simulation], Coroutine[Any, Any, None]]


def run(scenario: Scenario, block: int) -> None:
    for seed in seeds(RUNS, first=block * RUNS):
        simulate(scenario, seed=seed, until=36_000.0)


async def to_the_end(world: World) -> None:
    """Run the remaining records without faults."""
    await world.engine.run(world, world)
    world.take_back()


@pytest.mark.parametrize("block", range(5))
def test_a_run_ends_every_record_once_and_in_order(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        async with world.engine:
            await to_the_end(world)
            world.check_end()
            assert world.engine.unfinished == []
        assert world.opened == world.closed == 1

    run(main, block)


@pytest.mark.parametrize("block", range(5))
def test_a_run_cancelled_at_any_event_returns_the_unfinished_records(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        random = simulation.random
        async with world.engine:
            for _ in range(random.randint(1, 3)):
                running = asyncio.create_task(world.engine.run(world, world))
                world.on_event[world.events + random.randint(1, 60)] = running.cancel
                with suppress(asyncio.CancelledError):
                    await running
                world.on_event.clear()
                await world.calls_are_over()
                world.take_back()
            await to_the_end(world)
            world.check_end()

    run(main, block)


@pytest.mark.parametrize("block", range(3))
def test_a_run_cancelled_twice_returns_the_unfinished_records(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        random = simulation.random
        async with world.engine:
            running = asyncio.create_task(world.engine.run(world, world))
            cancelled = asyncio.Event()
            world.on_event[random.randint(1, 60)] = cancelled.set
            running.add_done_callback(lambda _: cancelled.set())
            await cancelled.wait()
            running.cancel()
            for _ in range(random.randint(0, 5)):
                await asyncio.sleep(random.choice((0, 0, 0, 0.05)))
            running.cancel()
            await asyncio.wait([running])
            await world.calls_are_over()
            world.take_back()
            await to_the_end(world)
            world.check_end()

    run(main, block)


@pytest.mark.parametrize("block", range(3))
def test_a_run_cancelled_at_any_time_ends_within_its_stop_timeout(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        async with world.engine:
            running = asyncio.create_task(world.engine.run(world, world))
            await asyncio.sleep(simulation.random.choice((0.0, 0.1, 1.0, 3.0)))
            cancelled_at = simulation.now()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert simulation.now() - cancelled_at <= 5.0
            await world.calls_are_over()
            world.take_back()
            await to_the_end(world)
            world.check_end()

    run(main, block)


@pytest.mark.parametrize("block", range(3))
def test_a_drained_run_finishes_the_records_that_arrived(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        async with world.engine:
            world.on_event[simulation.random.randint(1, 60)] = world.engine.drain
            await world.engine.run(world, world)
            late = {record.offset for record in world.engine.unfinished}
            world.take_back()
            finished = {outcome.record.offset for outcome in world.delivered} | world.dropped
            taken = {record.offset for record in world.records[: world.position]}
            assert finished == taken - late
            await to_the_end(world)
            world.check_end()

    run(main, block)


@pytest.mark.parametrize("block", range(3))
def test_a_failed_run_returns_the_unfinished_records(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation, on_error=("fail",))
        async with world.engine:
            with suppress(RecordError):
                await world.engine.run(world, world)
                assert not world.left()
            world.take_back()
            world.heal()
            await to_the_end(world)
            world.check_end()
            assert all(outcome.ok for outcome in world.delivered)

    run(main, block)


@pytest.mark.parametrize("block", range(3))
def test_outcomes_that_were_not_read_are_returned_as_unfinished(block: int) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation)
        random = simulation.random
        async with world.engine:
            while world.left():
                stop_after = random.choice((0, 1, 5, 1_000))
                records = random.choice((world.iterate, world.iterate_async))()
                async with aclosing(world.engine.map(records)) as outcomes:
                    async for outcome in outcomes:
                        if world.sink_latency is not None:
                            await world.sink_latency(random)
                        if not stop_after:
                            break
                        stop_after -= 1
                        world.accept(outcome)
                world.take_back()
            world.check_end()

    run(main, block)


def test_a_seed_determines_a_run() -> None:
    async def main(simulation: Simulation) -> list[tuple[float, int, int, object]]:
        world = World(simulation)
        async with world.engine:
            await to_the_end(world)
        seen = [(outcome.record.offset, outcome.attempts) for outcome in world.delivered]
        return [(simulation.now(), *pair, world.events) for pair in seen]

    for seed in seeds(20):
        assert simulate(main, seed=seed) == simulate(main, seed=seed)
