"""The order of ready keys: the oldest head first, and between lanes by their options."""

from collections import Counter
from random import Random

import pytest

from tests.engine.model_driver import Drive, calls_by_lane, drive
from thulawa.engine.lanes import ReadyKeys
from thulawa.engine.options import Lane, Lanes, Options
from thulawa.engine.queues import KeyQueue
from thulawa.engine.work_items import WorkItem


def lanes(*weights: float, **options: object) -> Lanes:
    named = tuple(Lane(name=str(index), weight=weight) for index, weight in enumerate(weights))
    return Lanes(lanes=named, **options)  # type: ignore[arg-type]


def key(timestamp: float = 0, lane: int = 0, arrived: float = 0) -> KeyQueue:
    return KeyQueue(object(), WorkItem(0, None, timestamp=timestamp, lane=lane, arrived=arrived))


def lane_of(queue: KeyQueue) -> int:
    assert queue.head is not None
    return queue.head.lane


def place(head: WorkItem | None) -> float:
    assert head is not None
    return head.timestamp


def served(ready: ReadyKeys, count: int, permits: int = 100) -> Counter[int]:
    """Return the number of starts by lane while every lane always has a ready key."""
    turns: Counter[int] = Counter()
    for _ in range(count):
        lane = lane_of(ready.pop(permits))
        turns[lane] += 1
        ready.add(key(lane=lane))
    return turns


@pytest.mark.parametrize("options", [Lanes(), Lanes(ageing=1_000), lanes(1, 1)])
def test_among_ready_keys_the_oldest_head_goes_first(options: Lanes) -> None:
    ready = ReadyKeys(options)
    times = [Random(seed).randint(0, 20) for seed in range(40)]
    for timestamp in times:
        ready.add(key(timestamp))
    given = []
    while ready.count:
        head = ready.pop(100).head
        assert head is not None
        given.append(head.timestamp)
    assert given == sorted(times)


@pytest.mark.parametrize("options", [Lanes(), Lanes(ageing=1_000)])
@pytest.mark.parametrize("ready_before", [0, 7])
@pytest.mark.parametrize("most", [1, 13, 47, 100])
def test_keys_added_and_taken_in_bulk_keep_the_order(
    options: Lanes, ready_before: int, most: int
) -> None:
    together, one_by_one = ReadyKeys(options), ReadyKeys(options)
    random = Random(most)
    times = [random.randint(0, 20) for _ in range(40 + ready_before)]
    for ready in (together, one_by_one):
        for timestamp in times[:ready_before]:
            ready.add(key(timestamp))
    together.add_all([key(timestamp) for timestamp in times[ready_before:]])
    for timestamp in times[ready_before:]:
        one_by_one.add(key(timestamp))
    while together.count:
        taken = together.take(most)
        heads = [one_by_one.pop(most).head for _ in taken]
        assert [queue.stamp for queue in taken] == [0] * len(taken)
        assert [place(queue.head) for queue in taken] == [place(head) for head in heads]
        assert together.count == one_by_one.count == len(together.keys())
    assert not one_by_one.count


def test_of_equally_old_heads_the_one_that_was_ready_first_goes_first() -> None:
    ready = ReadyKeys(Lanes())
    keys = [key() for _ in range(10)]
    for each in keys:
        ready.add(each)
    assert [ready.pop(100) for _ in keys] == keys


def test_a_retry_is_ordered_by_its_own_timestamp() -> None:
    ready = ReadyKeys(Lanes())
    retried, fresh = key(timestamp=1), key(timestamp=5)
    ticket = retried.pop()
    retried.append(WorkItem(9, None, timestamp=9))
    retried.put_back([ticket])
    ready.add(fresh)
    ready.add(retried)
    assert ready.pop(100) is retried


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (5, 3, 2), (0.5, 0.25, 0.25)])
def test_busy_lanes_share_the_starts_by_weight(weights: tuple[float, ...]) -> None:
    ready = ReadyKeys(lanes(*weights))
    for lane in range(len(weights)):
        ready.add(key(lane=lane))
    turns = served(ready, 1_000)
    for lane, weight in enumerate(weights):
        assert turns[lane] == pytest.approx(1_000 * weight / sum(weights), abs=2)


def test_a_lane_alone_has_all_starts_whatever_its_weight() -> None:
    ready = ReadyKeys(lanes(100, 1))
    ready.add(key(lane=1))
    assert served(ready, 50) == {1: 50}


def test_an_idle_lane_does_not_save_up_starts() -> None:
    ready = ReadyKeys(lanes(1, 1))
    ready.add(key(lane=0))
    served(ready, 500)
    ready.add(key(lane=1))
    assert served(ready, 100)[1] == pytest.approx(50, abs=2)


def test_strict_lanes_serve_the_first_one_that_has_work() -> None:
    ready = ReadyKeys(lanes(1, 100, 100, strict=True))
    for lane in (2, 1, 0, 1):
        ready.add(key(lane=lane))
    assert [lane_of(ready.pop(100)) for _ in range(4)] == [0, 1, 1, 2]


def test_a_lane_below_its_reservation_precedes_a_more_urgent_one() -> None:
    reserved = Lanes(
        lanes=(Lane(name="urgent"), Lane(name="bulk", reserved=0.2)), strict=True, ageing=None
    )
    of = Drive(Options(lanes=reserved, in_flight=10)).begin()
    of.arrive(*(WorkItem(offset, offset, lane=0) for offset in range(30)))
    of.succeed(*of.running.values())
    of.arrive(*(WorkItem(offset, offset, lane=1) for offset in range(30, 60)))
    of.succeed(*of.running.values())
    assert calls_by_lane(of) == [8, 2]


def test_a_reservation_without_work_is_used_by_others() -> None:
    reserved = Lanes(lanes=(Lane(name="urgent", reserved=0.9), Lane(name="bulk")), strict=True)
    of = Drive(Options(lanes=reserved, in_flight=10)).begin()
    of.arrive(*(WorkItem(offset, offset, lane=1) for offset in range(30)))
    assert calls_by_lane(of) == [0, 10]


def test_a_reservation_keeps_no_permit_idle_and_cancels_no_call() -> None:
    urgent, slow = Lane(name="urgent", reserved=0.5), Lane(name="slow", weight=100)
    of = Drive(Options(in_flight=2, lanes=Lanes(lanes=(urgent, slow)))).begin()
    of.arrive(*(WorkItem(offset, offset, lane=1) for offset in range(4)))
    assert of.in_flight == [0, 1], "nothing urgent is there, so all permits are used"
    step = of.arrive(*(WorkItem(offset, offset, lane=0) for offset in (4, 5)))
    assert (step.ended, step.started) == ([], []), "no call has been stopped for it"
    of.succeed(0)
    assert of.in_flight == [1, 4], "the first permit that is free is its own"
    of.succeed(1)
    assert of.in_flight == [4, 2], "it has its half, so now the weights decide"


def starts_in_a_flood(of: Drive, urgent: range) -> dict[int, float]:
    """Return when each record is called if an urgent one arrives and a call ends every second."""
    started: dict[int, float] = {}
    for offset in urgent:
        assert of.pull is not None
        of.arrive(WorkItem(offset, f"urgent-{offset}"))
        of.sleep(1)
        (call,) = of.running.values()
        of.succeed(call)
        of.deliver()
        started |= {offset: of.now for offset in of.in_flight if offset not in started}
    return started


def test_with_ageing_a_key_waits_only_for_older_ones_after_that_time() -> None:
    of = Drive(Options(lanes=lanes(1, 1, strict=True, ageing=5.0), in_flight=1)).begin()
    of.arrive(WorkItem(0, "patient", timestamp=99, lane=1), WorkItem(1, "urgent-1"))
    started = starts_in_a_flood(of, range(2, 30))
    assert 5 <= started[0] <= 7


def test_records_of_an_aged_key_start_one_after_the_other() -> None:
    of = Drive(Options(lanes=lanes(1, 1, strict=True, ageing=5.0), in_flight=1)).begin()
    patient = [WorkItem(offset, "patient", timestamp=99, lane=1) for offset in range(1, 6)]
    of.arrive(WorkItem(0, "urgent-0"), *patient)
    started = starts_in_a_flood(of, range(6, 30))
    assert [started[offset] for offset in range(1, 6)] == [5, 6, 7, 8, 9]


def test_without_ageing_a_strict_lane_may_starve_the_others() -> None:
    of = Drive(Options(lanes=lanes(1, 1, strict=True), in_flight=1)).begin()
    of.arrive(WorkItem(0, "urgent-0"), WorkItem(1, "patient", lane=1))
    for offset in range(2, 30):
        of.arrive(WorkItem(offset, f"urgent-{offset}"))
        of.sleep(1)
        of.succeed(*of.running.values())
        of.deliver()
        assert of.in_flight != [1]


@pytest.mark.parametrize("strict", [True, False])
def test_stale_entries_of_both_heaps_are_removed(strict: bool) -> None:  # noqa: FBT001 a parameter of the table
    ready = ReadyKeys(lanes(1_000, 1, strict=strict, ageing=10))
    for round_ in range(10_000):
        ready.now = round_ * 5.0
        ready.add(key(timestamp=-round_, arrived=ready.now))
        ready.add(key(timestamp=round_, lane=1, arrived=ready.now))
        if round_ > 3:
            ready.pop(100)
            ready.pop(100)
    assert ready.count == 8
    held = len(ready._by_arrival) + sum(len(lane.heap) for lane in ready._lanes)
    assert held < 1_000


def test_a_key_is_in_the_lane_of_its_head() -> None:
    of = drive(Options(lanes=lanes(1, 1, strict=True), in_flight=1))
    of.arrive(
        WorkItem(0, "busy"),
        WorkItem(1, "a", lane=1),
        WorkItem(2, "a", lane=0),
        WorkItem(3, "b", lane=0),
    )
    starts = []
    while of.running:
        starts += of.in_flight
        of.succeed(*of.running.values())
    assert starts == [0, 3, 1, 2]
