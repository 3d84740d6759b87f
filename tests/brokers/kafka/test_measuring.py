"""The arithmetic behind the figures of `make bench-kafka`."""

from statistics import mean

import pytest

from benchmarks.kafka_load import Timeline, call_seconds, least, value_of
from benchmarks.kafka_paced import Arrived


def test_calls_take_half_to_one_and_a_half_of_the_mean_and_the_same_every_time() -> None:
    times = [call_seconds(value_of(number), 0.1) for number in range(5_000)]
    assert times == [call_seconds(value_of(number), 0.1) for number in range(5_000)]
    assert 0.05 <= min(times) < 0.051
    assert 0.149 < max(times) < 0.15
    assert mean(times) == pytest.approx(0.1, rel=0.02)


def test_the_least_time_is_that_of_the_busiest_key_or_of_all_by_what_is_in_flight() -> None:
    times = [call_seconds(value_of(number), 1.0) for number in range(4)]
    assert least(["a", "a", "b", "c"], 1.0, 100) == pytest.approx(
        max(times[0] + times[1], times[2])
    )
    assert least(["a", "b", "c", "d"], 1.0, 1) == pytest.approx(sum(times))
    assert least(["a"] * 4, 1.0, 100) == pytest.approx(sum(times))


def test_a_timeline_ends_with_what_came_last_and_knows_its_longest_gap() -> None:
    timeline = Timeline([(1.0, 5), (10.0, 10), (10.5, 20), (12.0, 30)])
    assert timeline.ended() == 12.0
    assert timeline.longest_gap(10.0) == 1.5
    assert timeline.longest_gap(8.0) == 2.0


def test_what_arrived_counts_within_its_window_alone() -> None:
    arrived = Arrived([(0.0, 1.0), (4.0, 5.0), (5.0, 7.0), (9.0, 11.0)], 0, (4.0, 10.0))
    assert arrived.rate == pytest.approx(2 / 6)
    assert arrived.longest_gap == 3.0
    assert (arrived.percentile(0.0), arrived.percentile(0.99)) == (1_000, 2_000)
    assert Arrived([], 0, (0.0, 1.0)).percentile(0.5) is None
