"""Batches: what goes into one, when it starts, and what is final when part of it fails."""

import asyncio
from typing import Any

import pytest

from tests.engine.model_driver import Drive, drive, records
from thulawa.engine.events import Arrived, BatchReturned, Emit, Start, Tick
from thulawa.engine.limits import BatchSize
from thulawa.engine.options import Batch, Options, Retry
from thulawa.engine.scheduler import Scheduler
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    Overload,
    Terminal,
    WrongResult,
)

STEADY = Retry(attempts=2, first=1, jitter=0)


def same_key(size: int = 3, linger: float = 0.0, **options: Any) -> Options:
    return Options(batch=Batch(size=size, linger=linger), on_error="dead_letter", **options)


def across(size: int = 3, linger: float = 0.0, **options: Any) -> Options:
    batch = Batch(size=size, linger=linger, across_keys=True)
    return Options(batch=batch, on_error="dead_letter", **options)


def batches(of: Drive) -> list[list[int]]:
    return [call.offsets for call in of.running.values()]


# --- composition


def test_a_same_key_batch_holds_records_of_one_key_in_order() -> None:
    of = drive(same_key(), "ababab-aa")
    assert batches(of) == [[0, 2, 4], [1, 3, 5], [6]]
    of.return_batch(0, ["x", "y", "z"])
    assert [outcome.result for outcome in of.emitted] == ["x", "y", "z"]
    assert batches(of) == [[1, 3, 5], [6], [7, 8]]


def test_a_batch_across_keys_has_the_oldest_heads_first_then_more_of_each_key_in_turn() -> None:
    of = drive(across(size=5), "aaabc")
    assert batches(of) == [[0, 3, 4, 1, 2]]


def test_a_key_is_in_one_batch_at_a_time() -> None:
    of = drive(across(size=2), "aaaab")
    assert batches(of) == [[0, 4]]
    of.return_batch(0, ["ok", "ok"])
    assert batches(of) == [[1, 2]]


def test_without_order_a_batch_may_have_any_records() -> None:
    of = drive(across(order="none"), "aaaa")
    assert batches(of) == [[0, 1, 2], [3]]


def test_a_batch_needs_one_permit() -> None:
    of = drive(across(in_flight=1), "abcdef")
    assert batches(of) == [[0, 1, 2]]


# --- linger


def test_a_batch_that_is_not_full_waits_for_its_linger_and_no_longer() -> None:
    of = drive(same_key(linger=1.0), "ab")
    of.sleep(0.5)
    of.arrive(*records("a", first=2))
    of.sleep(0.49)
    assert batches(of) == []
    of.sleep(0.01)
    assert batches(of) == [[0, 2], [1]]


def test_a_batch_that_fills_up_starts_at_once() -> None:
    of = drive(same_key(linger=1.0), "aa")
    assert batches(of) == []
    of.arrive(*records("a", first=2))
    assert batches(of) == [[0, 1, 2]]


@pytest.mark.parametrize(("count", "started"), [(2, []), (3, [[0, 1, 2]])])
def test_across_keys_all_ready_records_together_fill_the_batch(
    count: int, started: list[list[int]]
) -> None:
    of = drive(across(linger=1.0), "abc"[:count])
    assert batches(of) == started
    of.sleep(1.0)
    assert batches(of) == [[0, 1, 2][:count]]


def test_a_retry_does_not_linger_again() -> None:
    for options in (same_key(linger=60, retry=STEADY), across(linger=60, retry=STEADY)):
        of = drive(options, "a")
        of.sleep(60)
        of.fail(0, ValueError())
        of.sleep(1)
        assert batches(of) == [[0]]


def test_draining_starts_lingering_batches() -> None:
    for options in (same_key(linger=60), across(linger=60)):
        of = drive(options, "a")
        of.drain()
        assert batches(of) == [[0]]


# --- failures


def test_after_a_failure_the_prefix_is_final_and_the_rest_is_retried_in_order() -> None:
    of = drive(same_key(size=4, retry=STEADY), "aaaa")
    of.return_batch(0, ["ok", ValueError(), "ok", "ok"])
    assert of.outcomes == [0]
    of.sleep(1)
    assert batches(of) == [[1, 2, 3]]
    of.return_batch(1, ["ok", "ok", "ok"])
    assert of.outcomes == [0, 1, 2, 3]


def test_after_a_terminal_failure_the_records_behind_it_are_final_too() -> None:
    of = drive(same_key(retry=STEADY), "aaa")
    of.return_batch(0, ["ok", Terminal("no"), "ok"])
    assert of.outcomes == [0, 1, 2]
    assert of.errors() == {1: Terminal}


def test_across_keys_a_failure_delays_its_own_key_only() -> None:
    of = drive(across(size=4, retry=STEADY), "abab")
    assert batches(of) == [[0, 1, 2, 3]]
    of.return_batch(0, [ValueError(), "ok", "ok", "ok"])
    assert of.outcomes == [1, 3]
    of.sleep(1)
    assert batches(of) == [[0, 2]]


def test_a_batch_that_fails_as_a_whole_is_retried_as_a_whole() -> None:
    of = drive(across(retry=STEADY), "abc")
    of.fail(0, ValueError())
    assert of.outcomes == []
    of.sleep(1)
    assert batches(of) == [[0, 1, 2]]


def test_when_its_attempts_are_used_up_its_records_are_retried_one_by_one() -> None:
    of = drive(same_key(retry=Retry(attempts=1)), "aaaaa")
    of.fail(0, ValueError("one of them is bad"))
    of.tick()
    assert batches(of) == [[0]]
    of.return_batch(0, ["ok"])
    assert batches(of) == [[1]]
    of.fail(1, ValueError("this one"))
    assert batches(of) == [[2]]
    of.return_batch(2, ["ok"])
    assert batches(of) == [[3, 4]], "what had no part in it is batched as ever"
    assert of.errors() == {1: ValueError}


def test_a_record_retried_alone_has_all_its_attempts() -> None:
    of = drive(same_key(retry=Retry(attempts=3, first=0)), "aa")
    for _ in range(3):
        of.fail(0, ValueError())
        of.tick()
    assert batches(of) == [[0]]
    for _ in range(2):
        of.fail(0, ValueError())
        of.tick()
        assert batches(of) == [[0]]
    of.fail(0, ValueError())
    assert of.errors() == {0: ValueError}
    assert of.emitted[0].attempts == 6


def test_a_batch_skips_solo_retries_and_they_start_next() -> None:
    of = Drive(across(in_flight=1, retry=Retry(attempts=1))).begin()
    of.arrive(WorkItem(0, "a", timestamp=5), WorkItem(1, "b", timestamp=5))
    of.fail(0, ValueError())
    of.arrive(WorkItem(2, "busy"))
    of.arrive(WorkItem(3, "c", timestamp=1), WorkItem(4, "d", timestamp=9))
    of.tick()
    started = []
    while of.running:
        started += batches(of)
        of.return_batch(next(iter(of.running.values())), ["ok"] * len(batches(of)[0]))
    assert started == [[2], [3, 4], [0], [1]]


def test_across_keys_solo_retries_start_one_by_one_at_once() -> None:
    of = drive(across(linger=60.0, retry=Retry(attempts=1)), "abc")
    of.fail(0, ValueError("one of them is bad"))
    of.tick()
    assert batches(of) == [[0], [1], [2]]
    of.return_batch(0, ["ok"])
    of.fail(1, Terminal("this one"))
    of.return_batch(2, ["ok"])
    assert of.errors() == {1: Terminal}


def test_a_solo_retry_does_not_requeue_all_ready_keys() -> None:
    of = drive(across(size=2, in_flight=1, retry=Retry(attempts=1)), "ab")
    of.arrive(*(WorkItem(offset, offset, timestamp=offset) for offset in range(2, 500)))
    of.fail(0, ValueError())
    of.return_batch(2, ["ok", "ok"])
    before = of.scheduler.state.ready._sequence
    of.tick()
    assert batches(of) == [[0]] or batches(of) == [[4, 5]]
    while 1 not in of.in_flight:
        of.return_batch(next(iter(of.running.values())), ["ok"] * len(batches(of)[0]))
    assert of.scheduler.state.ready._sequence - before < 20


def test_an_overloaded_batch_is_retried_as_a_whole() -> None:
    options = across(retry=Retry(attempts=1, first=2, jitter=0), deadline=3.0)
    of = drive(options, "ab")
    of.sleep(1.5)
    of.arrive(*records("c", first=2))
    of.fail(0, Overload())
    assert of.errors().keys() == {0, 1}, "for these two the deadline would come first"
    of.fail(2, Overload())
    assert of.in_flight == []
    of.sleep(1.99)
    assert of.in_flight == [], "an overloaded server is left alone meanwhile"
    of.sleep(0.01)
    assert batches(of) == [[2]]


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([], "a batch of 2 records got 0 results"),
        (["ok"], "a batch of 2 records got 1 results"),
        (["ok"] * 3, "a batch of 2 records got 3 results"),
        (None, "must return a list, not NoneType"),
        ("ok", "must return a list, not str"),
        ({0: "a", 1: "b"}, "must return a list, not dict"),
    ],
    ids=repr,
)
def test_a_result_of_the_wrong_shape_is_a_terminal_error(results: Any, reason: str) -> None:
    of = drive(same_key(retry=STEADY), "aa")
    of.return_batch(0, results)
    assert of.errors() == {0: WrongResult, 1: WrongResult}
    assert reason in str(of.emitted[0].error)


def test_the_result_of_an_abandoned_batch_is_ignored() -> None:
    of = drive(across(timeout=1, retry=STEADY), "ab")
    late = of.call(0)
    of.sleep(1)
    of.return_late(late)
    assert of.outcomes == []
    of.sleep(1)
    assert batches(of) == [[0, 1]]
    of.return_late(late)
    assert of.outcomes == []


# --- adaptive size


def test_a_full_batch_within_the_target_increases_the_size_by_one() -> None:
    size = BatchSize(Batch(size=100, target=1.0))
    assert size.now == 10
    size.observe(10, 0.5)
    assert size.now == 11
    size.observe(3, 0.5)
    assert size.now == 11, "a batch that was not full says nothing about larger ones"


def test_a_batch_beyond_the_target_cuts_the_size_by_a_tenth_of_what_it_was() -> None:
    size = BatchSize(Batch(size=100, target=1.0))
    size.observe(10, 1.5)
    assert size.now == 9
    size.observe(4, 1.5)
    assert size.now == 3


def test_the_size_stays_between_one_and_the_configured_size() -> None:
    size = BatchSize(Batch(size=12, target=1.0))
    for _ in range(20):
        size.observe(size.now, 0.1)
    assert size.now == 12
    for _ in range(50):
        size.observe(size.now, 9.0)
    assert size.now == 1
    size.observe(1, 0.1)
    assert size.now == 2, "it finds its way back"


def test_without_a_target_the_size_is_fixed() -> None:
    size = BatchSize(Batch(size=100))
    size.observe(100, 1e9)
    assert size.now == 100


def test_the_scheduler_learns_the_size_from_successful_batches_only() -> None:
    of = drive(Options(batch=Batch(size=50, target=1.0), on_error="drop", in_flight=1), "a" * 40)
    of.sleep(5)
    of.return_batch(0, [Terminal("no")] * 10)
    assert of.scheduler.statistics().batch_size == 10
    of.sleep(5)
    of.return_batch(10, ["ok"] * 10)
    assert of.scheduler.statistics().batch_size == 9


def test_a_cancellation_in_the_results_of_a_batch_fails_its_record() -> None:
    scheduler = Scheduler(Options(batch=Batch(size=2, across_keys=True), on_error="dead_letter"))
    scheduler.handle(Tick(), 0.0)
    started = scheduler.handle(Arrived([WorkItem(0, "a"), WorkItem(1, "b")]), 0.0)
    ticket = next(i.tickets[0] for i in started if isinstance(i, Start))
    instructions = scheduler.handle(
        BatchReturned(ticket, 1, ["fine", asyncio.CancelledError()]), 1.0
    )
    outcomes = next(i.outcomes for i in instructions if isinstance(i, Emit))
    assert [type(outcome.error).__name__ for outcome in outcomes] == ["NoneType", "SelfCancelled"]
