"""Latency of urgent records at three times the capacity, in virtual time."""

import pytest

from benchmarks.arrivals import Load, Ran, overload, run
from thulawa.engine import Lanes
from thulawa.priority.buckets import Buckets
from thulawa.testing import seeds, simulate

TWO = Buckets({"Platinum": 70, "Gold": 30})
WEIGHTED = Lanes.of(TWO)
STRICT = Lanes.of(TWO, strict=True)
IN_FLIGHT, LATENCY = 10, 0.1
CAPACITY = IN_FLIGHT / LATENCY
ALONE, THREE_TIMES = overload(CAPACITY, seconds=8)
INSTANT = 1e-9


def ran(load: Load, lanes: Lanes, seed: int = 0) -> Ran:
    return simulate(
        lambda _: run(load, lanes, in_flight=IN_FLIGHT, latency=LATENCY, seed=seed), seed=seed
    )


@pytest.mark.parametrize("seed", seeds(3))
def test_at_three_times_the_capacity_platinum_hardly_waits_and_gold_has_the_rest(seed: int) -> None:
    unloaded = ran(ALONE, WEIGHTED, seed).latency("Platinum", 0.99)
    loaded = ran(THREE_TIMES, WEIGHTED, seed)
    assert loaded.latency("Platinum", 0.99) <= 1.5 * unloaded
    assert loaded.rate("Platinum") == pytest.approx(CAPACITY / 2, rel=0.05)
    assert loaded.rate("Gold") == pytest.approx(CAPACITY / 2, rel=0.05)
    assert loaded.rate("Gold") >= 0.3 * CAPACITY


def test_without_priorities_platinum_waits_as_long_as_everybody() -> None:
    unloaded = ran(ALONE, Lanes()).latency("Platinum", 0.99)
    loaded = ran(THREE_TIMES, Lanes())
    assert loaded.latency("Platinum", 0.99) > 10 * unloaded


def test_when_all_are_overloaded_each_gets_its_share() -> None:
    both = ran(Load({"Platinum": 2 * CAPACITY, "Gold": CAPACITY}, 8), WEIGHTED)
    assert both.rate("Platinum") == pytest.approx(0.7 * CAPACITY, rel=0.05)
    assert both.rate("Gold") == pytest.approx(0.3 * CAPACITY, rel=0.05)


def test_a_share_that_is_not_used_goes_to_the_others() -> None:
    quiet = ran(Load({"Platinum": CAPACITY / 10, "Gold": 3 * CAPACITY}, 8), WEIGHTED)
    assert quiet.rate("Gold") == pytest.approx(0.9 * CAPACITY, rel=0.05)


@pytest.mark.parametrize("seed", seeds(3))
def test_with_strict_lanes_gold_is_called_only_when_no_platinum_waits(seed: int) -> None:
    busy = ran(Load({"Platinum": 0.9 * CAPACITY, "Gold": CAPACITY}, 8), STRICT, seed)
    waits = list(zip(busy.due["Platinum"], busy.called["Platinum"], strict=True))
    assert busy.rate("Gold") > 0
    for moment in busy.called["Gold"]:
        waiting = [due for due, called in waits if due < moment - INSTANT and called > moment]
        assert waiting == [], f"Gold was called at {moment} before Platinum"


def test_with_strict_lanes_gold_waits_for_the_end_of_the_overload() -> None:
    flood = ran(Load({"Platinum": 1.5 * CAPACITY, "Gold": 5}, 4), STRICT)
    assert flood.rate("Gold") < 1, "but for those before the first queue"
    assert max(flood.called["Gold"]) > 4


AGEING = 0.5


@pytest.mark.parametrize("seed", seeds(3))
def test_ageing_bounds_the_wait_of_the_least_urgent(seed: int) -> None:
    lanes = Lanes.of(TWO, strict=True, ageing=AGEING)
    load = Load({"Platinum": CAPACITY, "Gold": 5}, 8)
    starved, aged = ran(load, STRICT, seed), ran(load, lanes, seed)
    assert max(starved.ended["Gold"]) - 8 > 0
    # once it has aged it gets the next permit; its call and those before it come on top
    assert aged.latency("Gold", 1.0) <= AGEING + 2.5 * LATENCY


@pytest.mark.parametrize("seed", seeds(3))
def test_aged_records_are_not_overtaken_however_great_the_overload(seed: int) -> None:
    lanes = Lanes.of(TWO, strict=True, ageing=AGEING)
    ran_over = ran(Load({"Platinum": 2 * CAPACITY, "Gold": CAPACITY / 2}, 3), lanes, seed)
    times = sorted(
        (due, called)
        for lane in ("Platinum", "Gold")
        for due, called in zip(ran_over.due[lane], ran_over.called[lane], strict=True)
    )
    for due, called in times:
        overtaking = [
            other
            for other, when in times
            if other > due + INSTANT and due + AGEING + INSTANT < when < called - INSTANT
        ]
        assert overtaking == [], f"one that was due at {due} was overtaken after it had aged"


@pytest.mark.parametrize("overload", [0.5, 1, 2])
def test_records_behind_others_of_their_key_age_from_their_arrival(overload: float) -> None:
    lanes = Lanes.of(TWO, strict=True, ageing=AGEING)
    load = Load({"Platinum": overload * CAPACITY, "Gold": CAPACITY / 8}, 3, keys={"Gold": 2})
    all_of = ran(load, lanes)
    calls = {
        lane: list(zip(all_of.due[lane], all_of.called[lane], all_of.ended[lane], strict=True))
        for lane in ("Platinum", "Gold")
    }
    everybody = [call for some in calls.values() for call in some]
    for place, (due, called, _) in enumerate(calls["Gold"]):
        before = calls["Gold"][place % 2 : place : 2]  # of the same key
        free = max([due + AGEING, *(ended for _, _, ended in before)])
        overtaking = [
            other
            for other, when, _ in everybody
            if other > due + INSTANT and free + INSTANT < when < called - INSTANT
        ]
        assert overtaking == [], f"one that was due at {due} was overtaken after it had aged"
