"""Whether a sink writes a micro-batch, and whether a query may continue from its checkpoint."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.core.markers import (
    LastBatch,
    check_checkpoint,
    is_written,
)
from thulawa.errors import OlderBatch, StateError


@given(st.integers(0, 9), st.none() | st.integers(0, 9))
def test_the_number_of_a_batch_decides_whether_it_is_written_skipped_or_rejected(
    batch: int, last: int | None
) -> None:
    marker = None if last is None else LastBatch(last)
    if last is not None and batch < last:
        with pytest.raises(
            OlderBatch, match=f"written batch {last}, and it now sends batch {batch}"
        ):
            is_written(batch, marker, writer="w", task=3)
    else:
        assert is_written(batch, marker, writer="w", task=3) is (batch == last)


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [("a", "a", True), ("a", "b", False), ("", "b", True), ("a", "", True)],
)
def test_a_batch_that_is_run_again_must_have_the_layout_that_wrote_it(
    was: str, now: str, *, fits: bool
) -> None:
    assert not is_written(8, LastBatch(7, was), writer="w", task=0, layout=now)
    if fits:
        assert is_written(7, LastBatch(7, was), writer="w", task=0, layout=now)
        return
    with pytest.raises(StateError, match=r"Run the batch to its end with the plan that began it"):
        is_written(7, LastBatch(7, was), writer="w", task=0, layout=now)


@pytest.mark.parametrize(
    ("begun", "committed", "markers"),
    [
        (-1, -1, {}),
        (7, 7, {0: LastBatch(7, "old"), 5: LastBatch(3, "old")}),  # the plan may be another now
        (7, 6, {0: LastBatch(7, "new"), 1: LastBatch(6, "old")}),
    ],
)
def test_a_query_continues_from_the_checkpoint_that_its_sink_was_written_from(
    begun: int, committed: int, markers: Mapping[int, LastBatch]
) -> None:
    check_checkpoint(begun, committed, markers, writer="w", layout="new")


@pytest.mark.parametrize(
    ("begun", "committed", "markers", "reason"),
    [
        (-1, -1, {0: LastBatch(0)}, "task 0 of w has written batch 0, and the checkpoint has beg"),
        (6, 6, {0: LastBatch(6), 9: LastBatch(7)}, "task 9 .* batch 7, .* ends with batch 6: "),
        (7, 6, {0: LastBatch(6, "old"), 1: LastBatch(7, "old")}, "task 1 .*'old'.* with 'new'"),
    ],
)
def test_a_query_fails_if_one_task_has_written_another_batch(
    begun: int, committed: int, markers: Mapping[int, LastBatch], reason: str
) -> None:
    with pytest.raises(StateError, match=reason):
        check_checkpoint(begun, committed, markers, writer="w", layout="new")
