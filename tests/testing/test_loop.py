"""The virtual-time loop: time jumps, seeds decide, hangs are reported."""

import asyncio
import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from thulawa.testing import Overrun, Simulation, Stalled, VirtualTimeLoop, simulate

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


async def racers(simulation: Simulation) -> list[int]:
    finished: list[int] = []

    async def racer(number: int) -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(0)
        finished.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(racer(number))
    return finished


def run(main: Coroutine[Any, Any, T], **options: Any) -> T:
    loop = VirtualTimeLoop(1, **options)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.max_iterations += 10
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_day_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == 86_400
    assert time.monotonic() - began < 1


def test_time_stands_still_while_something_is_ready() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[float]:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (3, 1, 0.5, 2)))
        return woken

    assert run(main()) == [0.5, 1, 2, 3]


def test_one_seed_gives_one_order() -> None:
    assert simulate(racers, seed=5) == simulate(racers, seed=5)


def test_other_seeds_give_other_orders() -> None:
    orders = {tuple(simulate(racers, seed=seed)) for seed in range(10)}
    assert len(orders) == 10


def test_callbacks_of_one_iteration_are_shuffled_with_the_timers_due() -> None:
    async def first_of_both(simulation: Simulation) -> str:
        ran: list[str] = []
        simulation.loop.call_soon(ran.append, "soon")
        simulation.loop.call_at(simulation.now(), ran.append, "timer")
        await asyncio.sleep(1)
        return ran[0]

    assert {simulate(first_of_both, seed=seed) for seed in range(20)} == {"soon", "timer"}


def test_timers_that_differ_by_rounding_race_each_other() -> None:
    async def first_of_both(simulation: Simulation) -> float:
        ran: list[float] = []
        for when in (0.1 + 0.2, 0.3):
            simulation.loop.call_at(when, ran.append, when)
        await asyncio.sleep(1)
        return ran[0]

    assert {simulate(first_of_both, seed=seed) for seed in range(20)} == {0.1 + 0.2, 0.3}


@pytest.mark.parametrize("start", [0.0, 1e9])
def test_no_timer_fires_before_its_time(start: float) -> None:
    async def main(simulation: Simulation) -> list[float]:
        await asyncio.sleep(start)
        early: list[float] = []

        def check(when: float) -> None:
            early.extend([when] if simulation.now() < when else [])

        for step in range(1, 100):
            when = start + step * 1e-10
            simulation.loop.call_at(when, check, when)
        await asyncio.sleep(1)
        return early

    assert simulate(main, seed=1, until=math.inf) == []


def test_sets_of_tasks_iterate_alike_in_every_run_and_process() -> None:
    async def main(simulation: Simulation) -> list[str]:
        # Garbage in between, so that addresses would differ from run to run.
        tasks = {asyncio.create_task(asyncio.sleep(0)): bytearray(n * 100) for n in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    first = simulate(main, seed=1)
    keep = [bytearray(n) for n in range(10_000)]
    assert first == simulate(main, seed=1)
    assert len(keep) == 10_000


def test_a_seed_means_the_same_in_another_process() -> None:
    script = (
        "import tests.testing.test_loop as t; from thulawa.testing import simulate;"
        "print(simulate(t.racers, seed=3))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == str(simulate(racers, seed=3))


def test_a_stall_is_raised_with_the_tasks_and_the_lines_they_wait_at() -> None:
    async def waits_in_vain(gate: asyncio.Event) -> None:
        await deep_inside(gate)

    async def deep_inside(gate: asyncio.Event) -> None:
        await gate.wait()

    async def main() -> None:
        gate = asyncio.Event()
        await asyncio.create_task(waits_in_vain(gate), name="sentinel")

    with pytest.raises(Stalled, match="no timer is left") as stalled:
        run(main())
    message = str(stalled.value)
    assert "sentinel waits at" in message
    assert "in waits_in_vain" in message
    assert "in deep_inside" in message
    assert "await gate.wait()" in message
    assert "in main" in message


def test_a_timer_at_infinity_is_no_hope() -> None:
    with pytest.raises(Stalled):
        run(asyncio.sleep(math.inf))


def test_code_under_test_cannot_swallow_a_stall() -> None:
    async def main() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except Exception:  # noqa: BLE001 the point of the test
            await asyncio.sleep(1)

    with pytest.raises(Stalled):
        run(main())


def test_virtual_time_is_bounded_by_until() -> None:
    with pytest.raises(Overrun, match=r"beyond 10 s"):
        run(asyncio.sleep(11), until=10)
    run(asyncio.sleep(10), until=10)


def test_a_loop_that_spins_is_cut_off() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Overrun, match="1000 loop iterations"):
        run(main(), max_iterations=1000)


def test_threads_are_waited_for_in_real_time_and_take_no_virtual_time() -> None:
    async def main() -> tuple[str, float]:
        answer = await asyncio.wait_for(asyncio.to_thread(slow), timeout=0.01)
        return answer, asyncio.get_running_loop().time()

    def slow() -> str:
        time.sleep(0.05)
        return "done"

    assert run(main()) == ("done", 0)


def test_a_thread_of_ones_own_is_waited_for_when_the_loop_is_told() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        answer: asyncio.Future[str] = loop.create_future()
        report = threading.Timer(
            0.05, lambda: loop.call_soon_threadsafe(answer.set_result, "reported")
        )
        report.start()
        with loop.thread_work():
            return await answer

    assert run(main()) == "reported"


def test_a_silent_thread_stalls_the_run_once_the_thread_timeout_is_over() -> None:
    release = threading.Event()

    async def main() -> None:
        await asyncio.to_thread(release.wait)

    began = time.monotonic()
    with pytest.raises(Stalled, match="1 calls on threads are silent"):
        run(main(), thread_timeout=0.05)
    release.set()
    assert time.monotonic() - began >= 0.05


def test_a_silent_thread_lets_a_timeout_pass_once_the_thread_timeout_is_over() -> None:
    release = threading.Event()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(release.wait), timeout=30)
        release.set()
        return asyncio.get_running_loop().time()

    assert run(main(), thread_timeout=0.05) == 30


def test_once_threads_have_answered_time_jumps_again() -> None:
    async def main() -> None:
        await asyncio.to_thread(int)
        await asyncio.sleep(1000)

    began = time.monotonic()
    run(main(), thread_timeout=30)
    assert time.monotonic() - began < 10


def test_a_callback_that_comes_from_a_thread_amid_the_shuffle_is_not_lost() -> None:
    loop = VirtualTimeLoop(1)
    heard: list[str] = []

    class Interrupted(Random):
        def shuffle(self, batch: Any) -> None:
            if not heard:
                heard.append("called")
                loop.call_soon_threadsafe(heard.append, "heard")

    loop._random = Interrupted(1)
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    assert heard == ["called", "heard"]
