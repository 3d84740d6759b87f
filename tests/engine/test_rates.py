"""The token bucket: never more than rate × time + burst, and nothing before Retry-After."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.model_driver import Drive, drive, records
from thulawa.engine.limits import TokenBucket
from thulawa.engine.options import Options, Rate, Retry
from thulawa.engine.state import LearnedState
from thulawa.errors import Overload


def starts(bucket: TokenBucket, times: list[float]) -> list[float]:
    """Start a call at each of these times at which the bucket allows it."""
    started = []
    for now in times:
        if bucket.ready_at(now) <= now:
            bucket.take()
            started.append(now)
    return started


@given(
    st.floats(0.01, 1_000),
    st.floats(1, 20),
    st.lists(st.floats(0, 5), max_size=60),
)
def test_no_interval_has_more_starts_than_its_rate_and_one_burst(
    per_second: float, burst: float, gaps: list[float]
) -> None:
    times = [sum(gaps[:index]) for index in range(1, len(gaps) + 1)]
    started = starts(TokenBucket(Rate(per_second=per_second, burst=burst)), times)
    for first, begin in enumerate(started):
        for last in range(first, len(started)):
            allowed = burst + (started[last] - begin) * per_second
            assert last - first + 1 <= allowed + 1e-6


def test_calling_ready_at_often_adds_no_tokens() -> None:
    bucket = TokenBucket(Rate(per_second=0.001))
    bucket.ready_at(0.0)
    bucket.take()
    for step in range(1, 100_001):
        bucket.ready_at(step * 1e-3)
    assert bucket.ready_at(100.0) == pytest.approx(1_000, rel=1e-6)


def test_a_start_is_allowed_exactly_at_ready_at() -> None:
    bucket = TokenBucket(Rate(per_second=3, burst=1))
    now = 0.0
    opened: list[float] = []
    while len(opened) < 10:
        when = bucket.ready_at(now)
        if when <= now:
            bucket.take()
            opened.append(now)
        now = max(now, when)
    assert opened == pytest.approx([n / 3 for n in range(10)])


def test_a_pause_saves_up_one_burst_and_no_more() -> None:
    bucket = TokenBucket(Rate(per_second=10, burst=3))
    assert len(starts(bucket, [1_000.0] * 10)) == 3


def test_a_share_is_that_part_of_the_burst_and_at_least_one_call() -> None:
    assert _at_once(TokenBucket(Rate(per_second=10, burst=10, share=0.5))) == 5
    assert _at_once(TokenBucket(Rate(per_second=10, burst=2, share=0.1))) == 1


def _at_once(bucket: TokenBucket) -> int:
    started = 0
    while bucket.ready_at(0.0) <= 0.0:
        bucket.take()
        started += 1
    return started


def test_a_share_is_that_part_of_the_rate() -> None:
    bucket = TokenBucket(Rate(per_second=10, share=0.2))
    bucket.ready_at(0.0)
    bucket.take()
    assert bucket.ready_at(0.0) == pytest.approx(0.5)


def test_retry_after_closes_the_bucket_and_is_never_shortened() -> None:
    bucket = TokenBucket(None)
    bucket.close_until(5.0)
    bucket.close_until(3.0)
    assert bucket.ready_at(1.0) == 5.0
    assert bucket.ready_at(5.0) <= 5.0


def paces(of: Drive) -> list[float]:
    """Run to the end with calls that return at once; return the gaps between starts."""
    times: list[float] = []
    while not of.drained:
        times += [call.at for call in of.running.values()]
        if of.running:
            of.succeed(*of.running.values())
        elif of.outbox:
            of.deliver()
        else:
            of.tick()
    return [later - sooner for sooner, later in pairwise(times)]


def test_a_rate_spaces_the_starts_of_a_backlog_evenly() -> None:
    of = drive(Options(rate=Rate(per_second=4)), "abcdefgh")
    of.drain()
    assert paces(of) == pytest.approx([0.25] * 7)


def test_nothing_at_all_starts_before_retry_after_is_over() -> None:
    of = drive(Options(retry=Retry(first=0), in_flight=1), "ab")
    of.fail(0, Overload(retry_after=10))
    assert of.in_flight == []
    of.sleep(9.99)
    assert of.in_flight == []
    of.sleep(0.01)
    assert of.in_flight == [0]


def test_retry_after_outlasts_its_run() -> None:
    options = Options(retry=Retry(attempts=1))
    learned = LearnedState(options, Random(0))
    of = drive(options, "a", learned=learned)
    of.fail(0, Overload(retry_after=10))
    of.cancel()
    again = Drive(options, learned=learned).begin()
    again.arrive(*records("a"))
    assert again.in_flight == []
    again.sleep(10)
    assert again.in_flight == [0]
