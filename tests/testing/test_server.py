"""The simulated server: slots, queue, Little's law."""

import asyncio
import math
from random import Random

import pytest

from thulawa.errors import Overload
from thulawa.testing import Server, Simulation, constant, lognormal, never, seeds, simulate


async def drive(server: Server, in_flight: int, seconds: float) -> tuple[float, float]:
    """Keep ``in_flight`` calls going; give throughput and mean latency."""
    clock = asyncio.get_running_loop().time
    latencies: list[float] = []
    end = clock() + seconds

    async def caller() -> None:
        while clock() < end:
            began = clock()
            await server("ping")
            latencies.append(clock() - began)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return len(latencies) / seconds, sum(latencies) / len(latencies)


def measure(in_flight: int, **options: object) -> tuple[float, float]:
    async def main(simulation: Simulation) -> tuple[float, float]:
        server = Server(10, lognormal(0.1, 0.5), random=simulation.random, **options)  # type: ignore[arg-type]
        return await drive(server, in_flight, 200)

    return simulate(main, seed=3)


def test_up_to_capacity_latency_is_flat_and_throughput_grows() -> None:
    base = lognormal(0.1, 0.5).mean
    for in_flight in (1, 5, 10):
        throughput, latency = measure(in_flight)
        assert latency == pytest.approx(base, rel=0.03)
        assert throughput == pytest.approx(in_flight / base, rel=0.03)


def test_beyond_capacity_throughput_is_flat_and_latency_grows() -> None:
    base = lognormal(0.1, 0.5).mean
    for in_flight in (20, 50):
        throughput, latency = measure(in_flight)
        assert throughput == pytest.approx(10 / base, rel=0.03)
        assert latency == pytest.approx(base * in_flight / 10, rel=0.03)


def test_the_ideal_limit_is_where_throughput_is_full_and_nobody_queues() -> None:
    async def at(simulation: Simulation, share: float) -> tuple[float, int]:
        random = simulation.random
        server = Server(10, constant(0.1), random=random, network=constant(0.3))
        assert server.ideal_limit == pytest.approx(40)
        throughput, _ = await drive(server, round(server.ideal_limit * share), 100)
        return throughput, server.statistics().peak_queued

    # All callers start at once here, so some queue at first; what counts is throughput.
    full, _ = simulate(lambda s: at(s, 1.0), seed=1)
    half, queued_at_half = simulate(lambda s: at(s, 0.25), seed=1)
    double, _ = simulate(lambda s: at(s, 2.0), seed=1)
    assert full == pytest.approx(100, rel=0.02)
    assert double == pytest.approx(full, rel=0.02)
    assert half == pytest.approx(full / 4, rel=0.02)
    assert queued_at_half == 0


def test_without_network_the_ideal_limit_is_the_capacity() -> None:
    assert Server(7, constant(0), random=Random(1)).ideal_limit == 7
    instant = Server(7, constant(0), random=Random(1), network=constant(1))
    assert instant.ideal_limit == math.inf


@pytest.mark.parametrize("seed", seeds(10))
def test_the_queue_is_first_in_first_out(seed: int) -> None:
    async def main(simulation: Simulation) -> tuple[list[int], list[int]]:
        server = Server(1, constant(1), random=simulation.random)
        asked: list[int] = []
        answered: list[int] = []

        async def call(number: int) -> None:
            asked.append(number)
            answered.append(await server(number))

        await asyncio.gather(*map(call, range(20)))
        return asked, answered

    asked, answered = simulate(main, seed=seed)
    assert answered == asked


def test_a_full_queue_refuses_with_retry_after() -> None:
    async def main(simulation: Simulation) -> tuple[list[object], Server]:
        server = Server(2, constant(1), random=simulation.random, max_queue=3, retry_after=0.5)
        calls = (server(number) for number in range(10))
        return await asyncio.gather(*calls, return_exceptions=True), server

    answers, server = simulate(main, seed=1)
    refused = [answer for answer in answers if isinstance(answer, Overload)]
    assert len(refused) == 5
    assert {error.retry_after for error in refused} == {0.5}
    statistics = server.statistics()
    assert (statistics.calls, statistics.completed, statistics.rejected) == (10, 5, 5)
    assert (statistics.peak_serving, statistics.peak_queued) == (2, 3)
    assert statistics.peak_in_flight >= 5
    assert (statistics.in_flight, statistics.serving, statistics.queued) == (0, 0, 0)


def test_a_latency_set_while_calls_run_holds_for_those_served_from_then_on() -> None:
    async def main(simulation: Simulation) -> list[float]:
        server = Server(1, constant(1), random=simulation.random)
        ends: list[float] = []

        async def call() -> None:
            await server(None)
            ends.append(simulation.now())

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(call())
            await asyncio.sleep(0.5)
            server.latency = constant(10)
        return ends

    assert simulate(main, seed=1) == [1, 11, 21]


@pytest.mark.parametrize("seed", seeds(50))
def test_cancelled_calls_give_their_slots_back(seed: int) -> None:
    async def main(simulation: Simulation) -> tuple[int, int, int]:
        server = Server(3, constant(1), random=simulation.random)
        calls = [asyncio.create_task(server(number)) for number in range(30)]
        # At whole seconds slots change hands, some turns of the loop later: the cancellation
        # races the handing over.
        for call in simulation.random.sample(calls, 20):
            await asyncio.sleep(simulation.random.randint(0, 1))
            for _ in range(simulation.random.randint(0, 5)):
                await asyncio.sleep(0)
            call.cancel()
        await asyncio.wait(calls)
        statistics = server.statistics()
        assert statistics.peak_serving <= 3
        return statistics.serving, statistics.queued, statistics.in_flight

    assert simulate(main, seed=seed) == (0, 0, 0)


def test_a_call_that_gives_up_leaves_the_queue_at_once() -> None:
    async def main(simulation: Simulation) -> tuple[int, str]:
        server = Server(1, constant(10), random=simulation.random, max_queue=1)
        served = asyncio.create_task(server("served"))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server("impatient"), timeout=1)
        return server.statistics().queued, await server("next") + await served

    assert simulate(main, seed=1) == (0, "nextserved")


def test_a_server_that_hangs_blocks_its_slots_alone() -> None:
    async def main(simulation: Simulation) -> Server:
        server = Server(1, never(), random=simulation.random)
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server(number), timeout=1)
        return server

    assert simulate(main, seed=1).statistics().in_flight == 0


def test_a_server_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity of at least 1"):
        Server(0, constant(1), random=Random(1))
