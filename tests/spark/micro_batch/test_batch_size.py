"""Records per batch: found within bounds from wherever one begins, whatever a batch costs."""

import random
from dataclasses import dataclass

import pytest

from thulawa.errors import ConfigurationError
from thulawa.runtime.batch_size import AdaptiveBatchSize, BatchSizeEstimator
from thulawa.testing import seeds


@dataclass
class Machine:
    """Batches that cost something by themselves, and something for each record."""

    fixed: float
    each: float
    draw: random.Random
    noise: float = 0.0

    def seconds(self, records: int) -> float:
        jitter = 1 + self.noise * (2 * self.draw.random() - 1)
        return (self.fixed + self.each * records) * jitter


def settle(control: BatchSizeEstimator, machine: Machine, batches: int) -> list[int]:
    """Run batches with as many records waiting as one likes; give the limits."""
    limits = []
    for _ in range(batches):
        limits.append(control.limit)
        control.batch(control.limit, machine.seconds(control.limit), more=True)
    return limits


@pytest.mark.parametrize("seed", seeds(200))
def test_batches_take_the_time_they_should_from_any_start(seed: int) -> None:
    draw = random.Random(seed)
    target = draw.choice([0.5, 1.0, 5.0])
    fixed = draw.uniform(0, 0.45) * target
    each = 10 ** draw.uniform(-6, -3)
    machine = Machine(fixed, each, draw, noise=draw.choice([0.0, 0.1]))
    right = (target - fixed) / each
    first = round(right * 10 ** draw.uniform(-2, 2)) + 1
    bounds = AdaptiveBatchSize(least=1, most=10**9, seconds=target, first=first)
    last = settle(BatchSizeEstimator(bounds), machine, 60)[-10:]
    middle = sorted(last)[5]
    assert 0.6 * right <= middle <= 1.5 * right + 1


@pytest.mark.parametrize("seed", seeds(200))
def test_the_limit_never_leaves_its_bounds_and_moves_step_by_step(seed: int) -> None:
    draw = random.Random(seed)
    bounds = AdaptiveBatchSize(least=10, most=5_000, seconds=1.0, first=draw.randint(10, 5_000))
    control = BatchSizeEstimator(bounds)
    for _ in range(100):
        before = control.limit
        taken = draw.choice([0, 1, before, before // 2])
        control.batch(taken, 10 ** draw.uniform(-3, 3), more=draw.random() < 0.5)
        assert 10 <= control.limit <= 5_000
        assert before / 4 - 1 <= control.limit <= before * 2 + 1


def test_overhead_alone_does_not_make_batches_ever_smaller() -> None:
    machine = Machine(3.0, 0.0001, random.Random(1))
    control = BatchSizeEstimator(AdaptiveBatchSize(least=1, most=10**7, seconds=1.0, first=5_000))
    settle(control, machine, 40)
    assert control.limit == pytest.approx(30_000, rel=0.2)
    assert control.binding == "overhead"
    assert control.fixed == pytest.approx(3.0, rel=0.1)


def test_it_says_what_binds() -> None:
    fast = Machine(0.0, 1e-9, random.Random(1))
    bounds = AdaptiveBatchSize(least=100, most=50_000, seconds=1.0, first=1_000)
    control = BatchSizeEstimator(bounds)
    control.batch(500, 0.01, more=False)
    assert (control.limit, control.binding) == (1_000, "source")
    settle(control, fast, 20)
    assert (control.limit, control.binding) == (50_000, "most")
    slow = Machine(0.0, 1.0, random.Random(1))
    settle(control, slow, 20)
    assert (control.limit, control.binding) == (100, "least")
    right = Machine(0.0, 0.001, random.Random(1))
    settle(control, right, 30)
    assert control.binding == "time"
    assert control.limit == pytest.approx(1_000, rel=0.2)


def test_a_bound_binds_once_it_is_reached() -> None:
    control = BatchSizeEstimator(
        AdaptiveBatchSize(least=50, most=500_000, seconds=2.0, first=10_000)
    )
    control.batch(10_000, 400.0, more=True)
    assert (control.limit, control.binding) == (2_500, "time")
    control.batch(1, 0.000_001, more=True)
    assert (control.limit, control.binding) == (5_000, "time")


def test_a_long_batch_that_took_all_there_was_lowers_the_limit_too() -> None:
    control = BatchSizeEstimator(
        AdaptiveBatchSize(least=10, most=10_000, seconds=1.0, first=10_000)
    )
    control.batch(5_000, 10.0, more=False)
    assert control.limit < 10_000


@pytest.mark.parametrize(
    "options",
    [{"least": 0}, {"first": 1}, {"most": 5_000}, {"seconds": 0}],
    ids=["none", "first below least", "first above most", "no time"],
)
def test_bounds_that_cannot_hold_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        AdaptiveBatchSize(**options)  # type: ignore[arg-type]
