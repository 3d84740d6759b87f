"""The adaptive limit in front of simulated servers.

The acceptance checks are functions over a controller, so that the tests can also show that they
reject controllers that do nothing: frozen, always at the minimum, always at the maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.limit_simulation import Measured, Server, Simulation
from thulawa.engine.adaptive import AdaptiveLimit
from thulawa.engine.limits import Limit, LimitReport, Verdict
from thulawa.engine.options import Adaptive

Controller = Callable[[Adaptive, int], Limit]
Check = Callable[[Controller, int], None]

CAPACITY = 60
LATENCY = 0.1


def adaptive(options: Adaptive, seed: int) -> Limit:
    return AdaptiveLimit(options, options.initial, Random(seed))


IDLERS: dict[str, Controller] = {
    "frozen": lambda options, _: Limit(options.initial),
    "always minimum": lambda options, _: Limit(options.minimum),
    "always maximum": lambda options, _: Limit(options.maximum),
}


def simulate(
    make: Controller,
    seed: int,
    *,
    initial: int = 20,
    sigma: float = 0.4,
    timeout: float = inf,
    latency: float = LATENCY,
    tick: float = 0.0,
) -> Simulation:
    server = Server(CAPACITY, latency, sigma=sigma, timeout=timeout)
    return Simulation(make(Adaptive(initial=initial), seed), server, seed, tick=tick)


def settled(make: Controller, seed: int) -> Simulation:
    """Start, wait until the limit has settled, and let a dip under way end."""
    sim = simulate(make, seed)
    sim.run(60)
    assert_fits(sim.run(10), sim.server)
    while sim.limit.report().reason.startswith("probing"):
        sim.run(calls=1)
    return sim


def assert_fits(measured: Measured, server: Server) -> None:
    assert measured.permits == pytest.approx(server.capacity, rel=0.2)
    assert measured.throughput >= 0.9 * server.rate


# The acceptance checks.


def follows_a_slower_server(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.latency *= 2
    sim.run(60)
    assert_fits(sim.run(60), sim.server)


def follows_a_slightly_slower_server(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.latency *= 1.3
    sim.run(60)
    assert_fits(sim.run(60), sim.server)


def follows_a_faster_server(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.latency /= 2
    sim.run(30)
    assert_fits(sim.run(30), sim.server)


def follows_a_server_that_loses_capacity(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.resize(CAPACITY // 5)
    sim.run(60)
    assert_fits(sim.run(120), sim.server)


def follows_a_server_that_gains_capacity(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.resize(CAPACITY * 4)
    sim.run(30)
    assert_fits(sim.run(30), sim.server)


def comes_back_after_an_outage(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.timeout = 1.0
    sim.server.down = True
    sim.run(120)
    assert sim.limit.permits == 1
    sim.server.down = False
    sim.run(60)
    assert_fits(sim.run(60), sim.server)


def stays_at_the_floor_while_all_calls_time_out(make: Controller, seed: int) -> None:
    sim = simulate(make, seed, latency=100 * LATENCY, timeout=1.0, initial=1_000)
    sim.run(600, calls=20_000)
    assert sim.run(600, calls=20_000).permits < 2
    assert sim.peak_permits <= 2
    sim.server.latency = LATENCY
    sim.run(120)
    assert_fits(sim.run(60), sim.server)


def finds_its_way_where_queueing_ends_in_time_outs(make: Controller, seed: int) -> None:
    sim = simulate(make, seed, timeout=5 * LATENCY, initial=1_000)
    sim.run(60)
    assert_fits(sim.run(60), sim.server)


def settles_where_the_server_rejects_what_is_too_much(make: Controller, seed: int) -> None:
    for initial in (1, 1_000):
        sim = simulate(make, seed, initial=initial)
        sim.server.rejects = True
        sim.run(90, calls=200_000)
        assert_fits(sim.run(60, calls=100_000), sim.server)


def holds_while_nothing_arrives(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.demand = 0
    permits = sim.limit.permits
    sim.run(3_600)
    assert sim.limit.permits == permits
    sim.demand = inf
    sim.run(2 * LATENCY)
    assert_fits(sim.run(10), sim.server)


def holds_while_little_arrives(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.demand = 2
    sim.run(10 * LATENCY)
    before = sim.limit.report()
    sim.server.latency *= 3
    sim.run(600)
    after = sim.limit.report()
    assert (after.permits, after.proposed, after.baseline) == (
        before.permits,
        before.proposed,
        before.baseline,
    )
    sim.server.latency /= 3
    sim.demand = inf
    sim.run(10 * LATENCY)
    assert_fits(sim.run(10), sim.server)


def holds_while_keys_are_too_few(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    before = sim.limit.report()
    sim.demand = before.permits - 1
    sim.run(2 * LATENCY)
    moves = sim.limit.report().changes
    sim.run(120)
    assert sim.limit.report().changes == moves
    assert sim.limit.report().reason.startswith("holding")
    sim.demand = inf
    sim.run(2 * LATENCY)
    assert_fits(sim.run(10), sim.server)


def holds_through_bursts_below_the_limit(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.backlog = 0
    sim.run(5)
    permits = sim.limit.permits
    for burst in range(100):
        sim.backlog = permits * (burst % 10) // 10
        sim.run(1)
        assert sim.limit.permits == permits
    sim.backlog = inf
    sim.run(2 * LATENCY)
    assert_fits(sim.run(10), sim.server)


def does_not_grow_into_failures(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    sim.server.failing = 0.4
    sim.run(2)
    permits = sim.limit.permits
    sim.server.resize(CAPACITY * 4)
    sim.run(30)
    assert sim.peak_permits <= permits
    sim.server.failing = 0.0
    sim.run(60)
    assert_fits(sim.run(30), sim.server)


def gives_way_to_a_server_that_mostly_fails(make: Controller, seed: int) -> None:
    sim = settled(make, seed)
    permits = sim.limit.permits
    sim.server.failing = 0.8
    sim.run(60)
    assert sim.limit.permits <= permits / 4
    sim.server.failing = 0.0
    sim.run(60)
    assert_fits(sim.run(60), sim.server)


def settles_where_calls_end_in_crowds(make: Controller, seed: int) -> None:
    for sigma in (0.0, 0.4):
        sim = simulate(make, seed, sigma=sigma, tick=LATENCY / 10)
        sim.run(60)
        assert sim.run(60).permits == pytest.approx(CAPACITY, rel=0.2)


CHECKS: list[Check] = [
    follows_a_slower_server,
    follows_a_slightly_slower_server,
    follows_a_faster_server,
    follows_a_server_that_loses_capacity,
    follows_a_server_that_gains_capacity,
    comes_back_after_an_outage,
    stays_at_the_floor_while_all_calls_time_out,
    finds_its_way_where_queueing_ends_in_time_outs,
    settles_where_the_server_rejects_what_is_too_much,
    holds_while_nothing_arrives,
    holds_while_little_arrives,
    holds_while_keys_are_too_few,
    holds_through_bursts_below_the_limit,
    does_not_grow_into_failures,
    gives_way_to_a_server_that_mostly_fails,
    settles_where_calls_end_in_crowds,
]


def settles(
    make: Controller, seed: int, *, capacity: int, latency: float, sigma: float, initial: int
) -> None:
    server = Server(capacity, latency, sigma=sigma)
    sim = Simulation(make(Adaptive(initial=initial), seed), server, seed)
    calls = max(8_000, 80 * capacity)
    sim.run(calls=calls)
    assert_fits(sim.run(calls=calls), server)


every_start = pytest.mark.parametrize("initial", [1, 5, 50, 1_000])
every_capacity = pytest.mark.parametrize("capacity", [4, 20, 100, 400])


@every_start
@every_capacity
@pytest.mark.parametrize(
    ("latency", "sigma", "seeds"),
    [(0.005, 0.0, 1), (0.1, 0.0, 1), (0.005, 0.3, 2), (0.1, 0.6, 2)],
)
def test_it_settles_at_the_limit_of_littles_law(
    capacity: int, initial: int, latency: float, sigma: float, seeds: int
) -> None:
    for seed in range(seeds):
        settles(adaptive, seed, capacity=capacity, latency=latency, sigma=sigma, initial=initial)


@every_start
@every_capacity
@pytest.mark.parametrize("idler", IDLERS)
def test_a_limit_that_does_not_adapt_does_not_settle(
    idler: str, capacity: int, initial: int
) -> None:
    with pytest.raises(AssertionError):
        settles(IDLERS[idler], 0, capacity=capacity, latency=0.1, sigma=0.0, initial=initial)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("check", CHECKS)
def test_it(check: Check, seed: int) -> None:
    check(adaptive, seed)


@pytest.mark.parametrize("idler", IDLERS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_limit_that_does_not_adapt_fails(check: Check, idler: str) -> None:
    with pytest.raises(AssertionError):
        check(IDLERS[idler], 0)


# Observing.


def observing(capacity: int, in_flight: int) -> Simulation:
    limit = AdaptiveLimit(Adaptive(mode="observe"), in_flight, Random(0))
    return Simulation(limit, Server(capacity, LATENCY, sigma=0.4), seed=0)


def test_observe_reports_a_limit_and_enforces_none() -> None:
    sim = observing(capacity=50, in_flight=200)
    sim.demand = 40
    sim.run(10)
    sim.demand = inf
    assert sim.run(60).permits == pytest.approx(200)
    assert sim.peak_permits == 200
    report = sim.limit.report()
    assert report.mode == "observe"
    assert report.proposed == pytest.approx(50, rel=0.2)
    assert report.reason == "cut: latency"
    assert report.changes > 0


def test_observe_proposes_no_more_than_the_calls_in_flight() -> None:
    sim = observing(capacity=400, in_flight=200)
    assert sim.run(60).permits == pytest.approx(200)
    assert sim.peak_permits == 200
    assert 180 <= sim.limit.report().proposed <= 220


def test_observe_proposes_a_cut_on_overload() -> None:
    sim = observing(capacity=50, in_flight=200)
    sim.server.rejects = True
    assert sim.run(60).permits == pytest.approx(200)
    assert sim.peak_permits == 200
    assert sim.limit.report().proposed == pytest.approx(50, rel=0.4)
    assert sim.limit.report().reason == "cut: overload"


# Details.


def test_it_starts_with_two_calls_in_flight_to_learn_the_baseline() -> None:
    sim = simulate(adaptive, 0, initial=1_000, sigma=0.0)
    assert sim.limit.permits == 2
    assert sim.limit.report() == LimitReport(
        mode="enforce", permits=2, proposed=2.0, reason="probing"
    )
    sim.run(2)
    assert sim.limit.report().baseline == pytest.approx(LATENCY)


def test_calls_too_quick_for_a_network_do_not_move_it() -> None:
    limit = AdaptiveLimit(Adaptive(), 20, Random(0))
    for step in range(10_000):
        limit.observe(5e-5, "success", limit.permits, step * 5e-5)
    assert limit.permits == 2


def test_it_reports_when_it_is_at_the_maximum() -> None:
    limit = AdaptiveLimit(Adaptive(initial=10, maximum=10), 10, Random(0))
    sim = Simulation(limit, Server(100, LATENCY), seed=0)
    sim.run(10)
    assert limit.permits == 10
    assert limit.report().reason == "holding: at the maximum"


def test_a_minimum_above_the_capacity_is_kept() -> None:
    limit = AdaptiveLimit(Adaptive(initial=50, minimum=30), 50, Random(0))
    sim = Simulation(limit, Server(4, LATENCY, sigma=0.3), seed=0)
    sim.run(600)
    assert 30 <= sim.run(600).permits <= 40


def test_a_fixed_limit_is_reported_as_fixed() -> None:
    limit = Limit(7)
    limit.observe(1.0, "overload", 7, 1.0)
    assert limit.report() == LimitReport(mode="off", permits=7, proposed=7.0, reason="fixed")
    with pytest.raises(ValueError, match="at least 1"):
        Limit(0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "off"}, "leave Adaptive out"),
        ({"minimum": 0}, "1 <= minimum"),
        ({"minimum": 30}, "minimum <= initial"),
        ({"initial": 2_000}, "initial <= maximum"),
        ({"tolerance": 1.0}, "noise alone"),
        ({"tolerance": float("nan")}, "noise alone"),
    ],
)
def test_options_are_checked_when_created(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Adaptive(**options)  # type: ignore[arg-type]


verdicts = st.sampled_from(["success", "failure", "overload"])
latencies = st.one_of(
    st.sampled_from([0.0, 1e-5, 1e-4, 0.1, 1e6, 1e300, inf]),
    st.floats(min_value=0, allow_nan=False),
)
loads = st.one_of(st.just(None), st.integers(0, 2_000))
stretches = st.lists(
    st.tuples(latencies, verdicts, loads, st.floats(0, 1e9), st.integers(1, 400)), max_size=40
)


@given(
    stretches=stretches,
    mode=st.sampled_from(["observe", "enforce"]),
    bounds=st.lists(st.integers(1, 1_000), min_size=3, max_size=3).map(sorted),
    tolerance=st.floats(1.05, 100),
)
def test_permits_stay_within_bounds_whatever_is_observed(
    stretches: list[tuple[float, Verdict, int | None, float, int]],
    mode: str,
    bounds: list[int],
    tolerance: float,
) -> None:
    minimum, initial, maximum = bounds
    options = Adaptive(
        mode="observe" if mode == "observe" else "enforce",
        minimum=minimum,
        initial=initial,
        maximum=maximum,
        tolerance=tolerance,
    )
    limit = AdaptiveLimit(options, 77, Random(0))
    now = 0.0
    for latency, verdict, load, gap, calls in stretches:
        now += gap
        for _ in range(calls):
            limit.observe(latency, verdict, limit.permits if load is None else load, now)
            assert limit.permits == 77 if mode == "observe" else minimum <= limit.permits <= maximum
        report = limit.report()
        assert minimum <= report.proposed <= maximum
        assert all(value is None or isfinite(value) for value in (report.baseline, report.latency))
