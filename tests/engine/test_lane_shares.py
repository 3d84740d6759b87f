"""Every lane gets its share of the starts over time, however few permits there are."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arrivals import Load, run
from thulawa.engine import Lane, Lanes, WorkItem
from thulawa.engine.lanes import ReadyKeys
from thulawa.engine.queues import KeyQueue
from thulawa.priority.buckets import Buckets
from thulawa.testing import simulate

STARTS = 4_000


def bought(lanes: Lanes) -> list[float]:
    """Return the shares: by weight, at least what is reserved; if strict, the rest to the first."""
    reserved = [lane.reserved for lane in lanes.lanes]
    if lanes.strict:
        return [1 - sum(reserved[1:]), *reserved[1:]]
    low, high = 0.0, 1.0 / min(lane.weight for lane in lanes.lanes)
    for _ in range(100):
        level = (low + high) / 2
        shares = [max(lane.reserved, level * lane.weight) for lane in lanes.lanes]
        low, high = (level, high) if sum(shares) < 1 else (low, level)
    return shares


def starts(lanes: Lanes, permits: Callable[[int], int], seed: int = 0) -> Iterator[int]:
    """Return the lane of each start while every lane always has work.

    Calls take half to one and a half seconds; the number of permits may change with each.
    """
    random, now, number = Random(seed), 0.0, count()
    ready = ReadyKeys(lanes)
    calls: list[tuple[float, int, int]] = []
    for lane in range(len(lanes.lanes)):
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=lane)))
    for start in count():
        while len(calls) >= permits(start):
            now, _, over = heappop(calls)
            ready.finished(over)
        head = ready.pop(permits(start)).head
        assert head is not None
        ready.started(head.lane)
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=head.lane)))
        heappush(calls, (now + 0.5 + random.random(), next(number), head.lane))
        yield head.lane


def assert_shared(lanes: Lanes, permits: Callable[[int], int], most: int, seed: int = 0) -> None:
    """Check every share of the starts, but for the calls of about two rounds."""
    seen = list(islice(starts(lanes, permits, seed), STARTS))
    for lane, share in enumerate(bought(lanes)):
        assert seen.count(lane) == pytest.approx(share * STARTS, abs=0.01 * STARTS + 2 * most), (
            f"{lanes.lanes[lane].name} of {share:.1%} at {most} permits"
        )


@st.composite
def of_any_kind(draw: st.DrawFn) -> Lanes:
    weights = draw(st.lists(st.integers(1, 100), min_size=1, max_size=10))
    parts = [draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0])) for _ in weights]
    scale = sum(weights) if draw(st.booleans()) else sum(parts) * len(weights) or 1
    reserved = weights if scale == sum(weights) else parts
    return Lanes(
        lanes=tuple(
            Lane(name=str(place), weight=weight, reserved=part / scale)
            for place, (weight, part) in enumerate(zip(weights, reserved, strict=True))
        ),
        strict=draw(st.booleans()),
    )


@given(of_any_kind(), st.integers(1, 60), st.integers(0, 3))
def test_every_lane_with_work_gets_its_share_of_any_number_of_permits(
    lanes: Lanes, permits: int, seed: int
) -> None:
    assert_shared(lanes, lambda _: permits, permits, seed)


@given(of_any_kind(), st.lists(st.integers(1, 40), min_size=2, max_size=8), st.integers(80, 300))
def test_every_lane_gets_its_share_while_the_number_of_permits_changes(
    lanes: Lanes, limits: list[int], every: int
) -> None:
    # a limit does not change with every call: reserved permits last for a round or two
    assert_shared(lanes, lambda start: limits[start // every % len(limits)], max(limits))


@pytest.mark.parametrize(
    ("shares", "in_flight"),
    [
        ({"a": 70, "b": 30}, 1),
        ({"a": 70, "b": 30}, 2),
        ({"a": 70, "b": 30}, 3),
        ({"a": 70, "b": 30}, 5),
        ({"a": 70, "b": 30}, 50),
        ({"a": 40, "b": 30, "c": 20, "d": 10}, 8),
        ({"a": 33, "b": 33, "c": 29, "d": 5}, 16),
        ({f"b{n}": 10 for n in range(10)}, 5),
        ({f"b{n}": 15 if n < 3 else 11 for n in range(8)}, 16),
    ],
    ids=str,
)
def test_an_overloaded_engine_gives_every_bucket_its_share(
    shares: dict[str, int], in_flight: int
) -> None:
    capacity = in_flight / 0.1
    load = Load(dict.fromkeys(shares, 2 * capacity), 400 / capacity)
    ran = simulate(
        lambda _: run(
            load, Lanes.of(Buckets(shares)), in_flight=in_flight, latency=0.1, drain=False
        ),
        seed=0,
    )
    done = {name: ran.rate(name) * load.seconds for name in shares}
    for name, share in shares.items():
        assert done[name] == pytest.approx(sum(done.values()) * share / 100, abs=6 + in_flight / 4)


def test_with_one_permit_the_urgent_strict_lane_has_all_that_is_not_reserved() -> None:
    lanes = Lanes(lanes=(Lane(name="urgent"), Lane(name="bulk", reserved=0.01)), strict=True)
    seen = list(islice(starts(lanes, lambda _: 1), 1_000))
    assert seen.count(1) == pytest.approx(10, abs=1)


def test_a_lane_that_exceeded_its_share_is_held_back_for_a_few_rounds_only() -> None:
    """Short calls start more often; when permits become few, that is not made up for long."""
    lanes = Lanes(lanes=(Lane(name="a", reserved=0.5), Lane(name="b", reserved=0.5)))
    ready = ReadyKeys(lanes)

    def start(permits: int) -> int:
        head = ready.pop(permits).head
        assert head is not None
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=head.lane)))
        return head.lane

    for lane in (0, 1):
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=lane)))
    ready.started(1)  # one long call of b throughout, within its reservation
    for _ in range(10_000):
        assert start(2) == 0
    assert 0 in [start(1) for _ in range(30)]


def test_a_strict_lane_that_was_not_served_does_not_catch_up_later() -> None:
    lanes = Lanes(
        lanes=(Lane(name="first"), Lane(name="second"), Lane(name="reserved", reserved=0.1)),
        strict=True,
    )
    ready = ReadyKeys(lanes)
    for lane in (1, 2):
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=lane)))

    def start() -> int:
        head = ready.pop(1).head
        assert head is not None
        if head.lane:
            ready.add(KeyQueue(object(), WorkItem(0, None, lane=head.lane)))
        return head.lane

    for _ in range(900):
        ready.add(KeyQueue(object(), WorkItem(0, None, lane=0)))
    before = [start() for _ in range(1_000)]
    assert before.count(1) <= 1, "while the first has work the second is not called"
    seen = [start() for _ in range(100)]
    assert seen.count(2) == pytest.approx(10, abs=2)
