"""Random runs of the scheduler, with every rule checked after every step.

Two kinds of runs over the same families of options, the same world and the same rules. State
machines choose each step by Hypothesis, so that a failure shrinks to a short story. Runs from
a seed choose by a plain random generator, ten times as many in the same time; what Hypothesis
prints of a failure (options and seed) replays it.
"""

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.model_world import World, play
from tests.engine.strategies import AWKWARD, BAD_KEYS, ERRORS, FAMILIES, KEYS
from thulawa.engine.events import Arrived, Cancel, Drain, Event, Tick
from thulawa.engine.options import Options

MACHINE_RUNS = 200
MACHINE_STEPS = 30
MACHINE_RECORDS = 12
SEEDED_RUNS = 1_250
SEEDED_STEPS = 40

numbers = st.integers(0, 50)
faults = st.sampled_from([*ERRORS, *[None] * len(ERRORS)])
some_records = st.lists(
    st.tuples(
        st.sampled_from(KEYS * 5 + BAD_KEYS),
        st.sampled_from([0, 1, 2, 3] * 5 + [AWKWARD]),
        st.integers(0, 9),
        st.integers(0, 5),
        st.integers(0, 2),
        st.sampled_from([1, 1, 4]),
    ),
    max_size=6,
)


def holds(condition: Callable[[World], Any]) -> Callable[[Any], bool]:
    """Return a precondition over the world of a machine that has begun."""
    return lambda machine: not machine.is_over() and bool(condition(machine.world))


class SchedulerMachine(RuleBasedStateMachine):
    """One scheduler in a random environment."""

    family: ClassVar[str]
    world: World

    @initialize(data=st.data(), cached=st.booleans(), seed=st.integers(0, 99))
    def begin(self, data: st.DataObject, cached: bool, seed: int) -> None:  # noqa: FBT001 drawn
        options: Options = data.draw(FAMILIES[self.family])
        self.world = World(options, cached=cached, seed=seed)

    def is_over(self) -> bool:
        of = self.world.of
        return of.drained or of.cancelled

    @precondition(holds(lambda world: world.of.pull))
    @rule(drawn=some_records)
    def records_arrive(self, drawn: list[tuple[Any, int, int, int, int, int]]) -> None:
        self.world.arrive([self.world.record(*fields) for fields in drawn])

    @precondition(holds(lambda world: world.of.running))
    @rule(which=numbers, outcomes=st.lists(faults, min_size=1, max_size=5))
    def a_call_returns(self, which: int, outcomes: list[Any]) -> None:
        calls = list(self.world.of.running.values())
        results = ["ok" if fault is None else fault() for fault in outcomes]
        self.world.end(calls[which % len(calls)], results)

    @precondition(holds(lambda world: world.of.running))
    @rule(which=numbers, error=st.sampled_from(ERRORS))
    def a_call_raises(self, which: int, error: Callable[[], Exception]) -> None:
        calls = list(self.world.of.running.values())
        self.world.of.fail(calls[which % len(calls)], error())

    @precondition(holds(lambda world: world.of.running and world.of.options.batch))
    @rule(which=numbers, answer=st.sampled_from([None, [], "x"]))
    def a_batch_gets_an_answer_that_does_not_fit(self, which: int, answer: Any) -> None:
        calls = list(self.world.of.running.values())
        self.world.of.return_batch(calls[which % len(calls)], answer)

    @precondition(holds(lambda world: world.of.outbox))
    @rule(count=numbers)
    def outcomes_are_delivered(self, count: int) -> None:
        self.world.of.deliver(1 + count % len(self.world.of.outbox))

    @precondition(holds(lambda world: world.of.wake is not None))
    @rule(late=st.sampled_from([0.0, 0.0, 0.01, 0.5]))
    def the_time_comes(self, late: float) -> None:
        self.world.of.tick(late)

    @precondition(holds(lambda world: world.of.running))
    @rule(seconds=st.sampled_from([0.001, 0.05]))
    def time_passes_unnoticed(self, seconds: float) -> None:
        self.world.of.now += seconds

    @precondition(holds(lambda world: world.of.abandoned))
    @rule(which=numbers)
    def an_abandoned_call_gives_way(self, which: int) -> None:
        calls = list(self.world.of.abandoned.values())
        self.world.of.stop_call(calls[which % len(calls)])

    @precondition(holds(lambda world: world.of.abandoned))
    @rule(which=numbers, late=st.sampled_from(["too late", ValueError("too late")]))
    def an_abandoned_call_returns_late(self, which: int, late: Any) -> None:
        calls = list(self.world.of.abandoned.values())
        self.world.of.return_late(calls[which % len(calls)], late)

    @precondition(holds(lambda world: world.of.over))
    @rule(which=numbers, late=st.sampled_from(["too late", ValueError("too late")]))
    def a_call_that_is_over_returns_late(self, which: int, late: Any) -> None:
        over = self.world.of.over
        self.world.of.return_late(over[which % len(over)], late)

    @precondition(holds(lambda world: world.offset > MACHINE_RECORDS))
    @rule()
    def the_run_is_drained(self) -> None:
        if not self.world.of.scheduler.state.draining:
            self.world.of.drain()

    @precondition(holds(lambda world: world.offset > 2 * MACHINE_RECORDS or world.of.aborted))
    @rule()
    def the_run_is_cancelled(self) -> None:
        self.world.of.cancel()

    @precondition(lambda machine: machine.is_over())
    @rule(event=st.sampled_from([Tick(), Drain(), Cancel(), Arrived([])]))
    def after_the_end_nothing_happens(self, event: Event) -> None:
        step = self.world.of.handle(event)
        assert [step.started, step.emitted, step.ended, step.returned] == [[], [], [], []]
        assert step.pull is None

    def teardown(self) -> None:
        if hasattr(self, "world") and self.world.of.sound:
            self.world.finish()


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_happens_step_by_step_all_rules_hold(family: str) -> None:
    machine = type(f"{family}Machine", (SchedulerMachine,), {"family": family})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=MACHINE_RUNS,
            stateful_step_count=MACHINE_STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_in_whole_runs_from_a_seed_all_rules_hold(family: str) -> None:
    @settings(
        max_examples=SEEDED_RUNS,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller seed is no simpler run
        suppress_health_check=list(HealthCheck),
    )
    @given(options=FAMILIES[family], seed=st.integers(0, 2**64 - 1), cached=st.booleans())
    def run(options: Options, seed: int, cached: bool) -> None:  # noqa: FBT001 drawn
        random = Random(seed)
        world = World(options, cached=cached, seed=seed)
        play(world, random, random.randint(1, SEEDED_STEPS))

    run()


def test_the_random_runs_are_ten_thousand_and_more() -> None:
    assert len(FAMILIES) * (MACHINE_RUNS + SEEDED_RUNS) >= 10_000
