"""Latency and fault models."""

import asyncio
import math
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

import pytest

from thulawa.errors import (
    Overload,
    Retriable,
    Terminal,
)
from thulawa.testing import (
    Fault,
    Latency,
    Simulation,
    Stalled,
    constant,
    fails,
    fails_always,
    fails_with_probability,
    flaky,
    lognormal,
    never,
    overloaded,
    simulate,
    uniform,
)


@dataclass(frozen=True)
class Visit:
    offset: int
    key: str = "k"


def samples(latency: Latency, n: int = 20_000) -> list[float]:
    random = Random(1)
    return [latency.sample(random) for _ in range(n)]


def took(latency: Latency) -> float:
    async def main(simulation: Simulation) -> float:
        await latency(simulation.random)
        return simulation.now()

    return simulate(main, seed=1)


def outcomes(n: int, *faults: Fault, offset: int = 0) -> list[str]:
    """Return what ``n`` attempts at one record come to."""

    async def main(simulation: Simulation) -> list[str]:
        call = flaky(lambda visit: "ok", *faults, random=simulation.random)
        return [await outcome(call(Visit(offset))) for _ in range(n)]

    async def outcome(call: object) -> str:
        try:
            return str(await call)  # type: ignore[misc]
        except (Overload, Retriable, Terminal) as error:
            return type(error).__name__

    return simulate(main, seed=1)


def test_constant_latency_takes_exactly_its_time() -> None:
    assert took(constant(0.25)) == 0.25
    assert constant(0.25).mean == 0.25


def test_uniform_latency_stays_within_its_bounds_and_fills_them() -> None:
    drawn = samples(uniform(1, 3))
    assert 1 <= min(drawn) < 1.01
    assert 2.99 < max(drawn) <= 3
    assert fmean(drawn) == pytest.approx(uniform(1, 3).mean, rel=0.01)


def test_lognormal_latency_has_its_median_its_mean_and_its_tail() -> None:
    drawn = sorted(samples(lognormal(0.1, 0.5)))
    assert median(drawn) == pytest.approx(0.1, rel=0.02)
    assert fmean(drawn) == pytest.approx(lognormal(0.1, 0.5).mean, rel=0.02)
    assert drawn[int(len(drawn) * 0.99)] == pytest.approx(0.32, rel=0.05)


def test_never_ends_by_a_timeout_alone() -> None:
    async def main(simulation: Simulation) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(never()(simulation.random), timeout=9)
        return simulation.now()

    assert simulate(main, seed=1) == 9
    with pytest.raises(Stalled):
        took(never())


def test_models_work_on_a_real_loop_too() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await constant(0.02)(Random(1))
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(main()) >= 0.019


def test_one_seed_draws_one_sequence_of_latencies() -> None:
    assert samples(lognormal(1, 1), 10) == samples(lognormal(1, 1), 10)


def test_models_are_values() -> None:
    assert lognormal(1, 0.5) == lognormal(1, 0.5) != lognormal(1, 0.6)
    assert overloaded(2, retry_after=1) == overloaded(2, retry_after=1) != overloaded(2)
    assert len({fails(1), fails(1), fails(2)}) == 2


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (2, 1), (math.nan, 1), (0, math.inf), (-1, -1)])
def test_impossible_latencies_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"uniform|latency"):
        uniform(low, high)


def test_impossible_lognormals_are_refused() -> None:
    with pytest.raises(ValueError, match="median > 0"):
        lognormal(0, 1)


def test_fails_fails_the_first_attempts_and_then_succeeds() -> None:
    assert outcomes(4, fails(2)) == ["Retriable", "Retriable", "ok", "ok"]


def test_attempts_are_counted_per_record() -> None:
    async def main(simulation: Simulation) -> list[bool]:
        call = flaky(lambda visit: True, fails(1), random=simulation.random)
        visits = [Visit(0), Visit(1)]
        for visit in visits:
            with pytest.raises(Retriable):
                await call(visit)
        return await asyncio.gather(*map(call, visits))

    assert simulate(main, seed=1) == [True, True]


def test_fails_always_never_succeeds() -> None:
    assert outcomes(5, fails_always()) == ["Terminal"] * 5


def test_fails_with_probability_fails_that_fraction() -> None:
    failed = outcomes(5_000, fails_with_probability(0.2)).count("Retriable")
    assert failed == pytest.approx(1_000, rel=0.1)
    assert outcomes(50, fails_with_probability(0)) == ["ok"] * 50
    assert outcomes(50, fails_with_probability(1)) == ["Retriable"] * 50


def test_overloaded_carries_retry_after() -> None:
    with pytest.raises(Overload) as refused:
        overloaded(retry_after=1.5).strike(1, Random(1))
    assert refused.value.retry_after == 1.5
    assert outcomes(2, overloaded()) == ["Overload", "ok"]


def test_the_first_fault_that_strikes_wins() -> None:
    assert outcomes(3, overloaded(1), fails(2)) == ["Overload", "Retriable", "ok"]


@pytest.mark.parametrize(("times", "probability"), [(-1, 1), (1, 1.1), (1, -0.1)])
def test_impossible_faults_are_refused(times: float, probability: float) -> None:
    with pytest.raises(ValueError, match=r"times|probability"):
        Fault(Retriable, times, probability)


def test_flaky_waits_before_it_fails_and_passes_results_through() -> None:
    async def shout(word: str) -> str:
        return word.upper()

    async def main(simulation: Simulation) -> tuple[float, str]:
        call = flaky(shout, fails(1), random=simulation.random, latency=constant(2))
        with pytest.raises(Retriable):
            await call("a")
        failed_at = simulation.now()
        return failed_at, await call("a")

    assert simulate(main, seed=1) == (2, "A")
