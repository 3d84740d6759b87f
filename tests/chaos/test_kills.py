"""Short chaos runs of Streams on the embedded log; the long one is ``make chaos-streams``."""

from pathlib import Path

import pytest

from tests.chaos.killing import Run, store_row, topic_row
from tests.chaos.workload import Workload


@pytest.mark.timeout(900)  # four drivers, one after the other, on a machine that may be busy
def test_a_killed_application_loses_and_duplicates_nothing_and_rejects_an_older_checkpoint(
    tmp_path: Path,
) -> None:
    run = Run(folder=tmp_path, workload=Workload(records=1_500, keys=100, seed=1))
    assert [row for row in run.kill_drivers() if not row["clean"]] == []


@pytest.mark.timeout(900)  # a cluster, on a machine that may be busy
def test_an_application_on_two_executors_loses_and_duplicates_nothing_when_one_is_killed(
    tmp_path: Path,
) -> None:
    workload = Workload(records=1_000, keys=100, seed=2)
    run = Run(folder=tmp_path, workload=workload, kills=1, master="local-cluster[2,1,1024]")
    assert [row for row in run.kill_an_executor() if not row["clean"]] == []


def test_rows_count_differences_and_show_the_first_key_that_differs() -> None:
    assert store_row("counts", {"a": 1, "b": 2}, {"a": 1, "b": 2})["clean"]
    row = store_row("counts", {"a": 1, "b": 2}, {"a": 1, "c": 2})
    assert (row["wrong"], row["example"]) == (2, "b: expected 2, found None")
    row = topic_row("out", {"a": [([1, None], 5), ([2, 7], 6)]}, {"a": [([2, 7], 6)] * 2})
    assert (row["lost"], row["duplicated"], row["clean"]) == (1, 1, False)
