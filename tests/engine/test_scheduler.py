"""The scheduler as a whole: order contracts, draining, cancelling, known bugs of others."""

from typing import Any

import pytest

from tests.engine.model_driver import Drive, drive, records
from thulawa.engine.events import Arrived, Delivered, Succeeded, Tick
from thulawa.engine.options import Bounds, Options, Retry, SingleFlight
from thulawa.engine.work_items import WorkItem
from thulawa.errors import Terminal


@pytest.mark.parametrize(
    ("options", "keys", "in_flight"),
    [
        ({"order": "key"}, "aab-b-", [0, 2, 3]),
        ({"order": "key", "unkeyed": "parallel"}, "aab-b-", [0, 2, 3, 5]),
        ({"order": "partition"}, "aab-b-", [0]),
        ({"order": "none"}, "aab-b-", [0, 1, 2, 3, 4, 5]),
        ({"order": "emit"}, "aab-b-", [0, 1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_the_order_contract_decides_what_runs_concurrently(
    options: dict[str, Any], keys: str, in_flight: list[int]
) -> None:
    assert drive(Options(**options), keys).in_flight == in_flight


def test_equal_byte_keys_are_one_key() -> None:
    of = Drive().begin()
    of.arrive(
        WorkItem(0, b"k"), WorkItem(1, bytes(bytearray(b"k"))), WorkItem(2, 0.0), WorkItem(3, -0.0)
    )
    assert of.in_flight == [0, 2]


def test_a_key_is_released_when_its_result_is_final() -> None:
    of = drive(Options(retry=Retry(attempts=2)), "aa")
    of.fail(0, ValueError())
    assert of.in_flight == []
    of.tick()
    assert of.in_flight == [0]
    of.succeed(0)
    assert of.in_flight == [1]


def test_no_more_calls_are_in_flight_than_there_are_permits() -> None:
    of = drive(Options(in_flight=2), "abcdef")
    assert of.in_flight == [0, 1]
    of.succeed(1)
    assert of.in_flight == [0, 2]


def test_the_oldest_head_goes_first_whenever_a_permit_is_free() -> None:
    of = Drive(Options(in_flight=1)).begin()
    of.arrive(*(WorkItem(o, f"key {o}", timestamp=t) for o, t in enumerate([50, 30, 10, 40, 20])))
    started = []
    while of.running:
        started += of.in_flight
        of.succeed(*of.running.values())
    assert started == [2, 4, 1, 3, 0]


def test_a_busy_key_does_not_delay_the_others() -> None:
    of = drive(Options(in_flight=1), "a" * 50)
    of.arrive(WorkItem(50, "b", timestamp=3))
    started = []
    while of.running:
        started += of.in_flight
        of.succeed(*of.running.values())
    assert started.index(50) == 3


# --- the end


def test_draining_finishes_the_records_that_arrived_and_reports_it_once() -> None:
    of = drive(Options(in_flight=2, retry=Retry(attempts=2, first=1, jitter=0)), "aabc")
    of.drain()
    of.fail(0, ValueError())
    while of.running:
        of.succeed(*of.running.values())
        of.deliver()
    assert not of.drained, "one is parked"
    of.tick()
    of.succeed(0)
    of.succeed(1)
    assert not of.drained, "two are not delivered"
    of.deliver()
    assert of.drained


def test_an_idle_scheduler_is_drained_at_once() -> None:
    of = drive()
    of.drain()
    assert of.drained


def test_while_draining_nothing_is_pulled() -> None:
    of = drive(Options(bounds=Bounds(records=2)), "ab")
    of.drain()
    of.succeed(*of.running.values())
    of.deliver()
    assert of.pull is None
    assert of.drained


def test_records_pulled_before_the_drain_are_finished_too() -> None:
    of = drive(Options(), "a")
    of.drain()
    of.arrive(*records("b", first=1))
    of.succeed(0)
    of.succeed(1)
    of.deliver()
    assert of.drained


def test_cancelling_abandons_every_call_and_returns_the_unfinished_records() -> None:
    options = Options(
        in_flight=3,
        emit="partition",
        retry=Retry(attempts=2),
        single_flight=SingleFlight(by=lambda record: record.value),
    )
    of = Drive(options).begin()
    values = [*"abcdd", *"efg"]
    of.arrive(*(WorkItem(o, o, value, timestamp=o) for o, value in enumerate(values)))
    of.succeed(0)
    of.deliver()
    of.succeed(2)
    of.fail(1, ValueError())
    step = of.cancel()
    assert {end.call.lead.record.offset for end in step.ended} == {3, 5, 6}
    assert [record.offset for record in of.returned] == [1, 2, 3, 4, 5, 6, 7]


def test_records_that_arrive_after_the_end_are_returned() -> None:
    of = drive(Options(), "ab")
    of.cancel()
    of.arrive(*records("c", first=2))
    assert [record.offset for record in of.returned] == [0, 1, 2]
    assert of.in_flight == []


def test_after_cancelling_events_have_no_effect() -> None:
    of = drive(Options(), "ab")
    call = of.call(0)
    of.cancel()
    before = list(of.returned)
    of.return_late(call)
    for event in (Tick(), Delivered(0)):
        assert of.handle(event).started == []
    of.cancel()
    assert of.emitted == []
    assert of.returned == before


def test_records_that_were_emitted_but_not_delivered_are_returned() -> None:
    of = drive(Options(), "ab")
    of.succeed(0)
    of.succeed(1)
    of.deliver(1)
    of.cancel()
    assert [record.offset for record in of.returned] == [1]


def test_a_drain_under_load_ends_though_records_keep_failing() -> None:
    options = Options(
        in_flight=3, retry=Retry(attempts=3, first=0.1), on_error="drop", bounds=Bounds(records=30)
    )
    of = drive(options, "abcab" * 6)
    of.drain()
    for step in range(1_000):
        if of.drained:
            break
        if of.running:
            of.fail(next(iter(of.running.values())), Terminal("no") if step % 3 else OSError())
        else:
            of.tick()
    assert of.drained
    assert of.scheduler.statistics().dropped == 30


# --- quiet


def test_an_idle_scheduler_sets_no_timer() -> None:
    of = drive(Options(timeout=5), "a")
    of.succeed(0)
    of.deliver()
    of.wake = None
    of.handle(Tick())
    assert of.wake is None


def test_wake_at_is_sent_once_and_again_only_if_it_is_sooner() -> None:
    of = drive(Options(retry=Retry(attempts=9, first=8, jitter=0)), "ab")
    of.fail(0, ValueError())
    assert of.wake == 8
    of.wake = None
    of.now = 1.0
    of.fail(1, ValueError())
    assert of.wake is None, "it wakes up at 8 anyway"
    of.now = 8.0
    of.handle(Tick())
    assert of.wake == 9


def test_an_early_or_needless_tick_does_no_harm() -> None:
    of = drive(Options(retry=Retry(attempts=2, first=1, jitter=0)), "a")
    of.fail(0, ValueError())
    of.now = 0.5
    of.handle(Tick())
    assert of.in_flight == []
    assert of.wake == 1.0


def test_the_time_of_the_scheduler_never_goes_back() -> None:
    of = drive(Options(retry=Retry(attempts=2, first=1, jitter=0)), "a")
    of.scheduler.handle(Tick(), 100.0)
    of.fail(0, ValueError())
    assert of.wake == 101.0


def test_results_of_many_calls_are_reported_in_one_event() -> None:
    of = drive(Options(in_flight=3), "abcdef")
    step = of.succeed(*of.running.values())
    assert isinstance(step.event, Succeeded)
    assert len(step.emitted) == len(step.started) == 3


def test_an_empty_arrival_is_pulled_again() -> None:
    of = drive()
    of.pull = None
    of.handle(Arrived([]))
    assert of.pull is not None
