"""The figures of the demonstration are right for results that are known."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.measuring import Commit, Tally, in_step, percentile, slope
from thulawa.brokers.embedded import Log, ProducerRecord


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}") as made:
        made.create_topic("out")
        yield made


def write(log: Log, *results: tuple[bytes, int]) -> None:
    log.append(
        {
            "out": [
                ProducerRecord(key, json.dumps({"visit": visit, "arrived": 1_000}).encode())
                for key, visit in results
            ]
        }
    )


def test_a_steady_rate_is_the_slope_whatever_the_sizes_of_the_batches() -> None:
    commits = [Commit(time / 10, 20 * time) for time in (1, 2, 5, 6, 9, 12)]
    assert slope(commits, 0, 2) == pytest.approx(200)
    assert slope(commits, 0.15, 0.95) == pytest.approx(200)


def test_with_few_commits_the_rate_is_what_was_committed_over_the_window() -> None:
    commits = [Commit(1, 10), Commit(3, 30)]
    assert slope(commits, 2, 6) == 5
    assert slope([], 0, 10) == 0


def test_a_backlog_that_is_worked_off_is_no_rate_that_lasts() -> None:
    def arrived(time: float) -> float:
        return 100 * (time - 1)  # a second late is in step

    catching_up = [Commit(2, 0), Commit(3, 150), Commit(4, 300), Commit(5, 400), Commit(6, 500)]
    since = in_step(catching_up, 2, 8, arrived)
    assert since == 4
    assert slope(catching_up, since, 8) == pytest.approx(100)
    too_slow = [Commit(time, 10 * time) for time in range(2, 8)]
    assert in_step(too_slow, 2, 8, arrived) == 2
    too_late = [Commit(2, 0), Commit(6, 500), Commit(7, 600)]
    assert in_step(too_late, 2, 8, arrived) == 2


def test_percentiles_of_known_values() -> None:
    assert percentile(range(100), 0.5) == 50
    assert percentile(range(100), 0.99) == 99
    assert percentile([], 0.5) == 0


def test_order_is_kept_when_each_key_s_visits_rise(log: Log) -> None:
    tally = Tally(log, "out", warm_up=1, clock=lambda: 2.0)
    write(log, (b"a", 0), (b"b", 2), (b"a", 1), (b"b", 3))
    tally.read()
    assert (tally.violations, tally.missing(4), tally.last, tally.finished) == (0, 0, 3, 3)
    assert tally.latencies == [1.0] * 3
    assert tally.commits == [Commit(2.0, 3)]
    assert tally.slowest == {"a": 1.0, "b": 1.0}
    tally.close()


@pytest.mark.parametrize("visits", [(1, 0), (0, 0)], ids=["swapped", "twice"])
def test_a_swap_and_a_repeat_are_violations(log: Log, visits: tuple[int, int]) -> None:
    tally = Tally(log, "out", warm_up=0)
    write(log, *((b"a", visit) for visit in visits))
    tally.read()
    assert tally.violations == 1
    tally.close()


def test_a_visit_that_was_passed_over_is_missing(log: Log) -> None:
    tally = Tally(log, "out", warm_up=0)
    write(log, (b"a", 0), (b"b", 2))
    tally.read()
    assert tally.last == 2
    assert tally.missing(tally.last) == 1
    tally.close()
