"""The short forms of runs on Spark under kills; the long one is ``make chaos-streams``."""

from pathlib import Path

import pytest

from tests.chaos.killing import Run
from tests.chaos.world import World


@pytest.mark.timeout(900)  # three drivers, one after the other, on a machine that may be busy
def test_an_application_that_is_killed_loses_nothing_and_gives_nothing_twice(
    tmp_path: Path,
) -> None:
    world = World(records=2_000, keys=100, seed=1)
    assert Run(folder=tmp_path, world=world, kills=2).problems() == []


@pytest.mark.timeout(900)  # a cluster, on a machine that may be busy
def test_an_application_on_two_workers_ends_right_when_one_of_them_is_killed(
    tmp_path: Path,
) -> None:
    world = World(records=2_000, keys=100, seed=2)
    run = Run(folder=tmp_path, world=world, kills=2, master="local-cluster[2,1,1024]")
    assert run.problems_after_a_lost_worker() == []


@pytest.mark.timeout(900)  # four drivers, one after the other
def test_an_older_checkpoint_is_refused_and_the_newest_goes_on(tmp_path: Path) -> None:
    world = World(records=1_500, keys=100, seed=3)
    assert Run(folder=tmp_path, world=world, kills=2).problems_after_an_older_checkpoint() == []
