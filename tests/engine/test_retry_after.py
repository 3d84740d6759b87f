"""``retry_after`` delays one record and its key, or every call of the task."""

from collections.abc import Callable

import pytest

from tests.engine.model_driver import drive
from thulawa.engine import Engine, Options, Retry, WorkItem
from thulawa.errors import (
    Overload,
    Retriable,
)
from thulawa.testing import Simulation, constant, simulate

RECORDS = 5_000
IN_FLIGHT = 100
LATENCY = 0.2  # so that 500 calls a second are possible


def calls_a_second(refusal: Callable[[], Exception]) -> float:
    """Run calls of which 5 % are rejected for a second; return how many there were."""
    latency = constant(LATENCY)

    async def main(simulation: Simulation) -> float:
        calls = 0

        async def ask(record: WorkItem) -> None:
            nonlocal calls
            calls += 1
            await latency(simulation.random)
            if simulation.random.random() < 0.05:
                raise refusal()

        options = Options(
            in_flight=IN_FLIGHT, retry=Retry(attempts=20, first=0.1), on_error="dead_letter"
        )
        records = [WorkItem(offset, offset, None) for offset in range(RECORDS)]
        async with Engine(ask, options) as engine:
            outcomes = [outcome async for outcome in engine.map(records)]
        assert len(outcomes) == RECORDS
        assert all(outcome.error is None for outcome in outcomes)
        return calls / simulation.now()

    return simulate(main, seed=1)


def test_retry_after_of_a_record_does_not_delay_others() -> None:
    possible = IN_FLIGHT / LATENCY
    assert calls_a_second(lambda: Retriable("busy", retry_after=1)) > 0.8 * possible


def test_retry_after_of_an_overload_delays_all_calls() -> None:
    possible = IN_FLIGHT / LATENCY
    assert calls_a_second(lambda: Overload("full", retry_after=1)) < 0.25 * possible


def test_an_overload_without_retry_after_does_not_delay_others() -> None:
    possible = IN_FLIGHT / LATENCY
    assert calls_a_second(lambda: Overload("full")) > 0.8 * possible


@pytest.mark.parametrize(
    ("retry_after", "waited"),
    [(5.0, 5.0), (0.5, 1.0), (None, 1.0)],
    ids=["longer", "shorter", "no"],
)
def test_retry_after_makes_the_backoff_longer_and_never_shorter(
    retry_after: float | None, waited: float
) -> None:
    retry = Retry(attempts=2, first=1, jitter=0)
    of = drive(Options(retry=retry, in_flight=2, on_error="dead_letter"), "ab")
    of.fail(0, Retriable("busy", retry_after=retry_after))
    assert of.wake == of.now + waited
    assert set(of.in_flight) == {1}  # the other key is not delayed


def test_a_retry_after_beyond_the_deadline_ends_the_record() -> None:
    retry = Retry(attempts=2, first=1, jitter=0)
    of = drive(Options(retry=retry, deadline=3, on_error="dead_letter"), "a")
    of.fail(0, Retriable("busy", retry_after=10))
    assert of.errors() == {0: Retriable}
