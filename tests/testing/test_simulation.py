"""Runs under a seed: what a failure tells, and that nothing is left behind."""

import asyncio
import threading

import pytest

from thulawa.testing import (
    Overrun,
    Simulation,
    Stalled,
    Unretrieved,
    VirtualTimeLoop,
    seeds,
    simulate,
)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


async def breaks(simulation: Simulation) -> None:
    await asyncio.sleep(2.5)
    raise ValueError("broken")


def test_the_result_of_main_is_returned() -> None:
    async def main(simulation: Simulation) -> str:
        assert asyncio.get_running_loop() is simulation.loop
        return f"seed {simulation.seed} at {simulation.now()}"

    assert simulate(main, seed=4) == "seed 4 at 0.0"


def test_a_failure_names_its_seed_its_time_and_the_call_that_replays_it() -> None:
    with pytest.raises(ValueError, match="broken") as failure:
        simulate(breaks, seed=42, until=60)
    told = notes(failure.value)
    assert "seed 42, virtual time 2.5 s" in told
    assert (
        "simulate(breaks, seed=42, until=60, max_iterations=1000000, thread_timeout=5.0)"
        f"  # {__file__}:" in told
    )
    assert "THULAWA_SEED=42 pytest '" in told
    assert "test_a_failure_names_its_seed" in told


def test_outside_pytest_the_note_names_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(ValueError, match="broken") as failure:
        simulate(breaks, seed=42)
    assert "pytest" not in notes(failure.value)


def test_a_replay_repeats_the_failing_run_to_the_last_draw() -> None:
    async def unlucky(simulation: Simulation) -> None:
        for _ in range(100):
            await asyncio.sleep(simulation.random.random())
            if simulation.random.random() < 0.05:
                raise ValueError(f"at {simulation.now()}")

    messages = set()
    for _ in range(2):
        with pytest.raises(ValueError, match="at ") as failure:
            simulate(unlucky, seed=11)
        messages.add(str(failure.value))
    assert len(messages) == 1


def test_more_loop_iterations_do_not_change_what_main_draws() -> None:
    async def draw(simulation: Simulation, spins: int) -> float:
        for _ in range(spins):
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        return simulation.random.random()

    assert simulate(lambda s: draw(s, 0), seed=1) == simulate(lambda s: draw(s, 50), seed=1)
    assert simulate(lambda s: draw(s, 0), seed=1) != simulate(lambda s: draw(s, 0), seed=2)


def test_tasks_left_over_are_cancelled_and_may_clean_up() -> None:
    cleaned: list[float] = []

    async def lingers(simulation: Simulation) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            cleaned.append(simulation.now())

    async def main(simulation: Simulation) -> None:
        keep.append(asyncio.create_task(lingers(simulation)))
        await asyncio.sleep(1)

    keep: list[object] = []
    simulate(main, seed=1, until=1)
    assert cleaned == [2]


def test_a_task_born_while_winding_down_is_cancelled_too() -> None:
    ended: list[str] = []

    async def heir() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("heir")

    async def lingers() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            keep.append(asyncio.create_task(heir()))

    keep: list[asyncio.Task[None]] = []

    async def main(simulation: Simulation) -> None:
        keep.append(asyncio.create_task(lingers()))
        await asyncio.sleep(0.1)

    simulate(main, seed=1)
    assert ended == ["heir"]


def test_a_task_that_will_not_be_cancelled_is_named() -> None:
    async def clings() -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    async def main(simulation: Simulation) -> None:
        keep.append(asyncio.create_task(clings(), name="limpet"))
        await asyncio.sleep(0.1)

    keep: list[asyncio.Task[None]] = []
    with pytest.raises(Stalled, match="limpet waits at"):
        simulate(main, seed=1)


@pytest.mark.parametrize("held", [True, False], ids=["task kept", "task collected"])
def test_an_exception_nobody_looked_at_fails_the_run(held: bool) -> None:  # noqa: FBT001 a case
    keep: list[object] = []

    async def main(simulation: Simulation) -> None:
        task = asyncio.create_task(breaks(simulation), name="orphan")
        if held:
            keep.append(task)
        del task
        await asyncio.sleep(10)

    with pytest.raises(Unretrieved, match="broken") as failure:
        simulate(main, seed=8)
    assert isinstance(failure.value.__cause__, ValueError)
    assert "seed 8" in notes(failure.value)


def test_an_exception_somebody_looked_at_does_not() -> None:
    async def main(simulation: Simulation) -> bool:
        results = await asyncio.gather(breaks(simulation), return_exceptions=True)
        return isinstance(results[0], ValueError)

    assert simulate(main, seed=1)


def test_a_callback_that_raises_fails_the_run() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(Unretrieved, match="ZeroDivisionError"):
        simulate(main, seed=1)


def test_a_failure_while_winding_down_fails_the_run() -> None:
    async def bad_cleanup() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise KeyError("cleanup")

    async def main(simulation: Simulation) -> None:
        keep.append(asyncio.create_task(bad_cleanup()))
        await asyncio.sleep(1)

    keep: list[object] = []
    with pytest.raises(Unretrieved, match="cleanup"):
        simulate(main, seed=1)


def test_when_main_fails_the_unseen_failures_are_noted() -> None:
    async def main(simulation: Simulation) -> None:
        keep.append(asyncio.create_task(breaks(simulation)))
        await asyncio.sleep(5)
        raise RuntimeError("main")

    keep: list[object] = []
    with pytest.raises(RuntimeError, match="main") as failure:
        simulate(main, seed=1)
    assert "ValueError('broken')" in notes(failure.value)


def test_a_run_cut_off_is_cleaned_up_and_carries_its_seed() -> None:
    cleaned: list[bool] = []

    async def main(simulation: Simulation) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            cleaned.append(True)

    with pytest.raises(Overrun) as failure:
        simulate(main, seed=13, until=99)
    assert "seed 13" in notes(failure.value)
    assert cleaned == [True]


def test_the_loop_is_closed_and_its_threads_are_joined() -> None:
    loops: list[VirtualTimeLoop] = []

    async def main(simulation: Simulation) -> None:
        loops.append(simulation.loop)
        await asyncio.to_thread(int)

    before = set(threading.enumerate())
    simulate(main, seed=1)
    assert loops[0].is_closed()
    assert set(threading.enumerate()) <= before


def test_seeds_are_counted_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THULAWA_SEED", raising=False)
    assert list(seeds(3)) == [0, 1, 2]
    assert list(seeds(2, first=100)) == [100, 101]


def test_thulawa_seed_replays_one_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THULAWA_SEED", "77")
    assert list(seeds(1000)) == [77]


def test_a_thulawa_seed_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THULAWA_SEED", "x")
    with pytest.raises(ValueError, match="THULAWA_SEED must be one whole number, not 'x'"):
        seeds(1)
