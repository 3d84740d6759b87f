"""The order in which results are emitted, and when a record is finished."""

from collections.abc import Iterable
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.model_driver import Drive, drive
from thulawa.engine.emission import Frontier, ReorderBuffer
from thulawa.engine.options import Lane, Lanes, Options
from thulawa.engine.work_items import WorkItem
from thulawa.errors import (
    BadKey,
    BadLane,
    Terminal,
)


@pytest.mark.parametrize("finishing", list(permutations(range(4))))
def test_in_partition_order_results_are_emitted_by_offset(
    finishing: tuple[int, ...],
) -> None:
    of = drive(Options(order="none", emit="partition"), "abcd")
    for offset in finishing:
        of.succeed(offset)
    assert of.outcomes == [0, 1, 2, 3]


@pytest.mark.parametrize("finishing", list(permutations(range(4))))
def test_with_order_emit_results_of_a_key_are_emitted_in_order_and_wait_for_no_other_key(
    finishing: tuple[int, ...],
) -> None:
    of = drive(Options(order="emit"), "abab")
    for offset in finishing:
        of.succeed(offset)
    assert sorted(of.outcomes) == [0, 1, 2, 3]
    assert of.outcomes.index(0) < of.outcomes.index(2)
    assert of.outcomes.index(1) < of.outcomes.index(3)


def test_with_order_emit_calls_of_one_key_overlap() -> None:
    of = drive(Options(order="emit"), "aaa")
    assert of.in_flight == [0, 1, 2]
    of.succeed(2)
    assert of.outcomes == []
    assert of.scheduler.statistics().reordering == 1


def test_with_order_emit_unkeyed_records_keep_their_order_unless_they_are_parallel() -> None:
    of = drive(Options(order="emit"), "--")
    of.succeed(1)
    assert of.outcomes == []
    of = drive(Options(order="emit", unkeyed="parallel"), "--")
    of.succeed(1)
    assert of.outcomes == [1]


def test_as_finished_no_result_waits_for_another_key() -> None:
    of = drive(Options(), "ab")
    of.succeed(1)
    assert of.outcomes == [1]


@pytest.mark.parametrize("emit", ["finished", "partition"])
def test_a_record_is_finished_when_it_is_delivered_and_not_before(emit: Any) -> None:
    of = drive(Options(emit=emit), "ab")
    of.succeed(0)
    of.succeed(1)
    assert of.scheduler.statistics().frontier == 0
    of.deliver(1)
    assert of.scheduler.statistics().frontier == 1
    of.deliver(1)
    assert of.scheduler.statistics().frontier == 2


def test_the_frontier_waits_for_the_slowest_and_has_a_lag() -> None:
    of = drive(Options(), "abcd")
    of.succeed(1, 3)
    of.deliver()
    statistics = of.scheduler.statistics()
    assert (statistics.frontier, statistics.frontier_lag) == (0, 3)


def test_gaps_in_the_offsets_are_legal() -> None:
    of = Drive(Options(emit="partition")).begin()
    of.arrive(*(WorkItem(offset, offset) for offset in (5, 6, 100, 10**12)))
    for offset in (10**12, 6, 100, 5):
        of.succeed(offset)
    of.deliver()
    assert of.outcomes == [5, 6, 100, 10**12]
    assert of.scheduler.statistics().frontier == 10**12 + 1


def test_offsets_that_do_not_rise_are_rejected_before_any_record_is_accepted() -> None:
    of = drive(Options(), "ab")
    with pytest.raises(ValueError, match="offset 1 arrived after 1"):
        of.arrive(WorkItem(1, "c"))
    assert of.scheduler.statistics().arrived == 2
    of.scheduler.state.pull_pending = True
    of.scheduler.validate()


@pytest.mark.parametrize("order", ["key", "emit"])
@pytest.mark.parametrize("key", [[1], float("nan")], ids=["unhashable", "nan"])
def test_a_rejected_record_is_emitted_at_once(order: Any, key: Any) -> None:
    of = Drive(Options(order=order, on_error="dead_letter", name="locate")).begin()
    of.arrive(WorkItem(0, "a"), WorkItem(1, key), WorkItem(2, "b"))
    assert of.in_flight == [0, 2]
    assert of.errors() == {1: BadKey}
    assert of.emitted[0].error.__dict__["node"] == "locate"


def test_a_bad_key_is_emitted_in_partition_order() -> None:
    of = Drive(Options(on_error="column", emit="partition")).begin()
    of.arrive(WorkItem(0, "a"), WorkItem(1, [1]), WorkItem(2, "b"))  # type: ignore[arg-type]
    of.succeed(2)
    assert of.outcomes == []
    of.succeed(0)
    assert of.outcomes == [0, 1, 2]


def test_with_on_error_fail_a_bad_key_ends_the_run_and_nothing_is_lost() -> None:
    of = Drive(Options()).begin()
    of.arrive(WorkItem(0, "a"), WorkItem(1, [1]), WorkItem(2, "b"))  # type: ignore[arg-type]
    assert isinstance(of.aborted, BadKey)
    assert of.aborted.offset == 1
    of.cancel()
    assert [record.offset for record in of.returned] == [0, 1, 2]


def test_a_run_fails_once_however_many_bad_keys_come_together() -> None:
    of = Drive(Options()).begin()
    of.arrive(WorkItem(0, [1]), WorkItem(1, [2]))  # type: ignore[arg-type]
    assert isinstance(of.aborted, BadKey)
    assert of.aborted.offset == 0


def test_a_lane_that_does_not_exist_is_emitted_in_the_order_of_its_key() -> None:
    two = Lanes(lanes=(Lane(name="a"), Lane(name="b")))
    of = Drive(Options(order="emit", lanes=two, on_error="column")).begin()
    of.arrive(WorkItem(0, "a"), WorkItem(1, "a", lane=2), WorkItem(2, "a", lane=1))
    of.succeed(2)
    of.succeed(0)
    assert of.outcomes == [0, 1, 2]
    assert of.errors() == {1: BadLane}


def test_a_function_may_raise_the_errors_of_the_engine() -> None:
    of = drive(Options(order="emit", on_error="column"), "aaa")
    of.fail(0, BadKey("says the function"))
    of.succeed(1)
    of.succeed(2)
    assert of.outcomes == [0, 1, 2]
    of.deliver()
    of.drain()
    assert of.drained


def test_a_dropped_record_releases_those_that_waited_for_it() -> None:
    of = drive(Options(order="none", emit="partition", on_error="drop"), "abc")
    of.succeed(1)
    of.succeed(2)
    of.fail(0, Terminal("no"))
    assert of.outcomes == [1, 2]


OFFSETS = st.lists(st.integers(0, 10**12), min_size=1, max_size=30, unique=True).map(sorted)


@given(OFFSETS, st.randoms(use_true_random=False))
def test_values_are_released_in_order_as_soon_as_all_before_them_are_finished(
    offsets: list[int], random: Random
) -> None:
    line = ReorderBuffer()
    for offset in offsets:
        line.expect(offset)
    left: list[int] = []
    finished: set[int] = set()
    for offset in random.sample(offsets, len(offsets)):
        finished.add(offset)
        left += line.finish(offset, offset)
        prefix = next((i for i, o in enumerate(offsets) if o not in finished), len(offsets))
        assert left == offsets[:prefix]
        assert len(line.finished) == len(finished) - prefix
        assert sorted(line.finished.values()) == [o for o in offsets[prefix:] if o in finished]
    assert len(line) == len(line.finished) == 0


@given(OFFSETS, st.randoms(use_true_random=False))
def test_the_frontier_is_the_first_unfinished_offset_however_sparse_they_are(
    offsets: list[int], random: Random
) -> None:
    frontier = Frontier()
    frontier.expect(records(offsets))
    unfinished = set(offsets)
    newest = -1
    for offset in random.sample(offsets, len(offsets)):
        assert frontier.frontier == min(unfinished)
        assert frontier.lag == max(0, newest - min(unfinished))
        unfinished.discard(offset)
        frontier.finish([offset])
        newest = max(newest, offset)
        assert sorted(frontier.unfinished) == sorted(unfinished)
    assert frontier.frontier == offsets[-1] + 1
    assert frontier.lag == len(frontier.unfinished) == 0


def records(offsets: Iterable[int]) -> list[WorkItem]:
    return [WorkItem(offset, None) for offset in offsets]


def test_the_frontier_of_a_partition_without_records_is_its_beginning() -> None:
    assert Frontier().frontier == 0
    assert Frontier().lag == 0


@pytest.mark.parametrize("offsets", [[2], [1], [5, 4], [7, 7]])
def test_offsets_that_do_not_rise_are_rejected_as_a_whole(
    offsets: list[int],
) -> None:
    frontier = Frontier()
    frontier.expect(records([1, 2]))
    with pytest.raises(ValueError, match="offsets must rise"):
        frontier.expect(records(offsets))
    assert list(frontier.unfinished) == [1, 2]
    frontier.expect(records([3]))


def test_an_offset_is_finished_once() -> None:
    frontier = Frontier()
    frontier.expect(records([1, 2]))
    frontier.finish([2])
    with pytest.raises(KeyError):
        frontier.finish([2])
