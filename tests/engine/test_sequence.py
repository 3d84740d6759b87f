"""Reorder buffers return values in order; the frontier passes no unfinished offset."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.engine.sequence import Frontier, ReorderBuffer
from thulawa.engine.work_items import WorkItem

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
        assert line.buffered == len(finished) - prefix
        assert sorted(line.values()) == [o for o in offsets[prefix:] if o in finished]
    assert len(line) == line.buffered == 0


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
        assert sorted(frontier) == sorted(unfinished)
    assert frontier.frontier == offsets[-1] + 1
    assert frontier.lag == len(frontier) == 0


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
    assert list(frontier) == [1, 2]
    frontier.expect(records([3]))


def test_an_offset_is_finished_once() -> None:
    frontier = Frontier()
    frontier.expect(records([1, 2]))
    frontier.finish([2])
    with pytest.raises(KeyError):
        frontier.finish([2])
