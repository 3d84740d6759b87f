"""Histograms are right to within 7 %, and statistics name the bottleneck."""

from dataclasses import fields
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.model_driver import Drive, calls_by_lane, drive, records
from thulawa.engine.options import Batch, Bounds, Lane, Lanes, Options, Rate, Retry, SingleFlight
from thulawa.engine.statistics import Histogram
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    Overload,
    Terminal,
)

SHARES = (0.01, 0.5, 0.9, 0.99, 1.0)


def histogram(durations: list[float]) -> Histogram:
    made = Histogram()
    for duration in durations:
        made.add(duration)
    return made


@given(st.lists(st.floats(1e-7, 1e5), min_size=1, max_size=200), st.sampled_from(SHARES))
def test_a_percentile_is_never_too_low_and_at_most_seven_percent_too_high(
    durations: list[float], share: float
) -> None:
    exact = sorted(durations)[ceil(share * len(durations)) - 1]
    assert exact <= histogram(durations).percentile(share) <= exact * 1.07


def test_a_large_sample_is_described_as_well() -> None:
    random = Random(1)
    durations = [random.lognormvariate(-3, 1) for _ in range(20_000)]
    summary = histogram(durations).summary()
    ordered = sorted(durations)
    assert summary.count == 20_000
    assert summary.p50 == pytest.approx(ordered[9_999], rel=0.07)
    assert summary.p99 == pytest.approx(ordered[19_799], rel=0.07)
    assert summary.maximum == pytest.approx(ordered[-1], rel=0.07)


def test_nothing_and_zero_are_described_as_zero() -> None:
    assert histogram([]).summary().maximum == 0
    assert histogram([0.0, 0.0]).summary().maximum == 0


def test_folding_keeps_every_duration_and_a_bounded_number_of_buckets() -> None:
    made = Histogram()
    random = Random(1)
    for count in range(1, 10_001):
        made.add(random.uniform(0.001, 1.0))
        made.fold(1_000)
        assert len(made._pending) < 1_000
        assert count % 2_500 or made.summary().count == count
    assert len(made._buckets) <= 16 * 11


# --- the bottleneck

STUCK = Retry(attempts=1_000, first=1_000, longest=1_000, jitter=0)


def binds(of: Drive) -> str:
    return of.scheduler.statistics().bottleneck


def test_the_source_is_the_bottleneck_when_nothing_waits() -> None:
    assert binds(drive()) == "source"
    assert binds(drive(Options(), "ab")) == "source"


def test_the_limit_is_the_bottleneck_when_a_ready_key_waits_for_a_permit() -> None:
    assert binds(drive(Options(in_flight=2), "abc")) == "limit"


def test_keys_are_the_bottleneck_when_all_waiting_records_are_behind_their_own_key() -> None:
    assert binds(drive(Options(in_flight=5), "aab")) == "keys"


def test_the_rate_is_the_bottleneck_when_there_is_no_token() -> None:
    of = drive(Options(rate=Rate(per_second=1)), "ab")
    assert binds(of) == "rate"
    of.sleep(1)
    assert binds(of) == "source"


def test_the_rate_is_the_bottleneck_until_retry_after_is_over() -> None:
    of = drive(Options(retry=Retry(first=0)), "a")
    of.fail(0, Overload(retry_after=5))
    of.arrive(*records("b", first=1))
    assert binds(of) == "rate"


@pytest.mark.parametrize("across", [False, True])
def test_the_source_is_the_bottleneck_while_a_batch_lingers(across: bool) -> None:  # noqa: FBT001 a parameter of the table
    batch = Batch(size=3, linger=5, across_keys=across)
    assert binds(drive(Options(batch=batch), "ab")) == "source"


@pytest.mark.parametrize("bounds", [Bounds(records=4), Bounds(bytes=4)])
def test_downstream_is_the_bottleneck_when_undelivered_outcomes_closed_intake(
    bounds: Bounds,
) -> None:
    of = Drive(Options(bounds=bounds)).begin()
    of.arrive(*records("abcd", size=1))
    of.succeed(*of.running.values())
    of.drain()
    assert binds(of) == "downstream"


def test_parked_records_are_the_bottleneck_when_they_closed_intake() -> None:
    of = drive(Options(bounds=Bounds(records=4, parked=0), retry=STUCK), "abcd")
    for offset in range(4):
        of.fail(offset, ValueError())
    assert binds(of) == "parked"


def test_keys_are_the_bottleneck_when_buffered_results_closed_intake() -> None:
    of = drive(Options(bounds=Bounds(records=4), emit="partition"), "abcd")
    of.succeed(1, 2, 3)
    of.drain()
    assert binds(of) == "keys"


# --- the snapshot


def test_every_record_that_is_not_finished_is_counted_in_one_place() -> None:
    options = Options(
        emit="partition",
        in_flight=3,
        retry=STUCK,
        single_flight=SingleFlight(by=lambda record: record.value),
    )
    of = Drive(options).begin()
    values = ["p", "q", "r", "s", "s", "t"]
    of.arrive(*(WorkItem(o, o, value, timestamp=o, size=2) for o, value in enumerate(values)))
    of.succeed(0)
    of.fail(1, ValueError())
    of.succeed(2)
    snapshot = of.scheduler.statistics()
    places = ("waiting", "in_flight_records", "following", "parked", "reordering", "undelivered")
    assert {place: getattr(snapshot, place) for place in places} == {
        "waiting": 0,
        "in_flight_records": 2,
        "following": 1,
        "parked": 1,
        "reordering": 1,
        "undelivered": 1,
    }
    assert snapshot.held_bytes == 12


def test_the_longest_queue_is_named() -> None:
    snapshot = drive(Options(), "abaac").scheduler.statistics()
    assert (snapshot.longest_queue, snapshot.longest_queue_key) == (2, "a")
    assert snapshot.keys == 3


def test_calls_in_flight_are_reported_by_lane_with_one_lane_too() -> None:
    assert calls_by_lane(drive(Options(), "abc")) == [3]
    two = Lanes(lanes=(Lane(name="a"), Lane(name="b")))
    of = Drive(Options(lanes=two)).begin()
    of.arrive(WorkItem(0, "a"), WorkItem(1, "b", lane=1), WorkItem(2, "c", lane=1))
    assert calls_by_lane(of) == [1, 2]
    of.succeed(1)
    assert calls_by_lane(of) == [1, 1]


def test_a_lane_reports_waiting_records_their_age_and_residence() -> None:
    two = Lanes(lanes=(Lane(name="urgent"), Lane(name="bulk")), strict=True)
    of = Drive(Options(lanes=two, in_flight=1, on_error="drop")).begin()
    of.arrive(WorkItem(0, "a", lane=1), WorkItem(1, "b", lane=1))
    of.sleep(3)
    of.arrive(WorkItem(2, "c"), WorkItem(3, "d", lane=7))
    of.sleep(1)
    urgent, bulk = of.scheduler.statistics(of.now).lanes
    assert (urgent.name, urgent.waiting, urgent.in_flight, urgent.oldest) == ("urgent", 1, 0, 1)
    assert (bulk.name, bulk.waiting, bulk.in_flight, bulk.oldest) == ("bulk", 1, 1, 4)
    of.succeed(0)
    of.sleep(1)
    of.fail(2, Terminal("no"))
    urgent, bulk = of.scheduler.statistics(of.now).lanes
    assert (urgent.waiting, urgent.done, urgent.oldest) == (0, 1, 0)
    assert (bulk.waiting, bulk.in_flight, bulk.done) == (0, 1, 1)
    assert urgent.residence.maximum == pytest.approx(2, rel=0.07)
    assert bulk.residence.maximum == pytest.approx(4, rel=0.07)


@pytest.mark.parametrize("order", ["key", "emit"])
@pytest.mark.parametrize("on_error", ["fail", "drop"])
@pytest.mark.parametrize("lane", [2, -1])
def test_a_record_of_no_lane_is_counted_in_none_whatever_its_key(
    order: Any, on_error: Any, lane: int
) -> None:
    two = Lanes(lanes=(Lane(name="urgent"), Lane(name="bulk")))
    of = Drive(Options(lanes=two, order=order, on_error=on_error)).begin()
    of.arrive(WorkItem(0, float("nan"), lane=lane), WorkItem(1, "a", lane=lane))
    lanes = of.scheduler.statistics().lanes
    assert [(one.waiting, one.done) for one in lanes] == [(0, 0), (0, 0)]


def test_latency_is_a_call_s_and_residence_a_record_s_from_arrival_to_result() -> None:
    of = drive(Options(in_flight=1), "ab")
    of.sleep(1)
    of.succeed(0)
    of.sleep(1)
    of.succeed(1)
    snapshot = of.scheduler.statistics()
    assert snapshot.latency.count == snapshot.residence.count == 2
    assert snapshot.latency.maximum == pytest.approx(1, rel=0.07)
    assert snapshot.residence.maximum == pytest.approx(2, rel=0.07)


def test_counters_count_every_kind_of_result() -> None:
    of = drive(Options(on_error="drop", retry=Retry(attempts=2, first=0), timeout=9), "abcd")
    of.fail(0, Terminal("no"))
    of.fail(1, Overload())
    of.fail(2, ValueError())
    of.tick()
    of.succeed(*of.running.values())
    told: dict[str, Any] = {
        field.name: getattr(of.scheduler.statistics(), field.name)
        for field in fields(of.scheduler.statistics())
    }
    expected = {"arrived": 4, "succeeded": 3, "failed": 1, "dropped": 1, "retries": 2}
    assert told | expected == told
    assert (told["overloads"], told["timeouts"]) == (1, 0)
