"""Backpressure: intake closes at a bound and opens again at ``resume_at`` of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.model_driver import Drive, drive, records
from thulawa.engine.backpressure import Backpressure
from thulawa.engine.options import Bounds, Options, Retry
from thulawa.engine.work_items import WorkItem
from thulawa.errors import Overload

FOREVER = Retry(attempts=1_000, first=1_000, longest=1_000, jitter=0)


def test_at_first_there_is_room_up_to_the_bounds() -> None:
    assert Backpressure(Bounds(records=10, bytes=100, keys=7)).room(0) == (7, 100)


@pytest.mark.parametrize(
    ("bound", "low"), [("records", 7), ("bytes", 70)], ids=["records", "bytes"]
)
def test_intake_closes_at_the_bound_and_opens_at_resume_at_not_between(
    bound: str, low: int
) -> None:
    ledger = Backpressure(Bounds(records=10, bytes=100, keys=100, resume_at=0.7))
    setattr(ledger, bound, 10 * low // 7)
    assert ledger.room(0) == (0, 0)
    setattr(ledger, bound, low + 1)
    assert ledger.room(0) == (0, 0)
    setattr(ledger, bound, low)
    assert min(ledger.room(0)) > 0
    setattr(ledger, bound, low + 1)
    assert min(ledger.room(0)) > 0, "once open it stays open until the bound is reached"


def test_keys_close_intake_too() -> None:
    ledger = Backpressure(Bounds(records=100, keys=10, resume_at=0.5))
    assert ledger.room(9)[0] == 1
    assert ledger.room(10) == (0, 0)
    assert ledger.room(6) == (0, 0)
    assert ledger.room(5)[0] == 5


def test_where_keys_are_not_tracked_parked_keys_add_no_room() -> None:
    ledger = Backpressure(Bounds(records=10, keys=4, parked=2))
    ledger.records = 2
    ledger.park(1, 0, 1)
    assert ledger.room(0)[0] == 4


def test_parked_records_count_against_the_bounds_only_beyond_their_allowance() -> None:
    ledger = Backpressure(Bounds(records=10, keys=100, parked=4))
    ledger.records = 10
    ledger.park(4, 0, 1)
    assert ledger.room(0)[0] == 4
    ledger.records = 10
    ledger.park(2, 0, 1)
    assert ledger.room(0)[0] == 0
    assert ledger.excess() == 2


@given(
    st.lists(st.tuples(st.sampled_from(["take", "park", "unpark", "finish"]), st.integers(1, 9)))
)
def test_held_and_parked_together_never_exceed_the_sum_of_both_bounds(
    acts: list[tuple[str, int]],
) -> None:
    bounds = Bounds(records=20, bytes=10**9, keys=10**9, parked=5)
    ledger = Backpressure(bounds)
    for act, count in acts:
        if act == "take":
            ledger.records += min(count, ledger.room(0)[0])
        elif act == "park":
            ledger.park(min(count, ledger.records), 0, 1)
        elif act == "unpark":
            ledger.park(-min(count, ledger.parked), 0, -1)
        else:
            ledger.records -= min(count, ledger.records)
        assert ledger.records + ledger.parked <= bounds.records + bounds.parked


def test_the_scheduler_pulls_as_many_records_as_there_is_room_for() -> None:
    of = Drive(Options(bounds=Bounds(records=5, bytes=50, keys=4))).begin()
    assert of.wanted() == (4, 50)
    of.arrive(*records("aab", size=10))
    assert of.wanted() == (2, 20)


def test_records_in_flight_waiting_reordered_or_undelivered_all_count_as_held() -> None:
    of = Drive(Options(emit="partition", in_flight=2, bounds=Bounds(records=4))).begin()
    of.arrive(*records("abcd"))
    assert of.wanted() == (0, 0)
    of.succeed(1)
    of.succeed(2)
    assert of.wanted() == (0, 0), "one in flight, one waiting, two in the reorder buffer"
    of.succeed(0)
    assert of.wanted() == (0, 0), "three emitted and not delivered"
    of.deliver()
    assert of.wanted() > (0, 0)


def test_a_few_failing_keys_do_not_stop_intake_and_many_do() -> None:
    options = Options(
        retry=FOREVER, bounds=Bounds(records=10, keys=10, parked=5), on_error="dead_letter"
    )
    of = Drive(options).begin()
    offset = 0
    while of.pull is not None:
        of.arrive(WorkItem(offset, f"key {offset}"))
        of.fail(offset, ValueError("down"))
        offset += 1
        assert offset < 100, "intake never stops"
    assert of.scheduler.statistics().parked == 15
    assert of.scheduler.statistics().keys == 15


def test_parked_keys_do_not_stop_new_keys() -> None:
    of = Drive(
        Options(retry=FOREVER, bounds=Bounds(records=100, keys=3, parked=2, resume_at=0))
    ).begin()
    of.arrive(*records("abc"))
    assert of.wanted() == (0, 0), "three keys are the bound"
    of.fail(0, Overload())
    of.fail(1, Overload())
    of.succeed(2)
    of.deliver()
    assert of.wanted()[0] == 3


def test_bytes_overshoot_by_less_than_one_record() -> None:
    of = Drive(Options(bounds=Bounds(records=100, bytes=10))).begin()
    of.arrive(WorkItem(0, "a", size=9))
    assert of.wanted() == (99, 1)
    of.arrive(WorkItem(1, "b", size=9))
    assert of.wanted() == (0, 0)
    assert of.scheduler.statistics().held_bytes == 18


def test_released_keys_are_used_although_their_results_wait_in_the_reorder_buffer() -> None:
    options = Options(emit="partition", bounds=Bounds(records=100, keys=2, resume_at=0.5))
    of = drive(options, "ab")
    assert of.wanted() == (0, 0)
    of.succeed(1)
    assert of.wanted() > (0, 0)
