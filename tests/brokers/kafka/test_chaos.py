"""A few cells of the crash matrix; `make chaos` runs all."""

from pathlib import Path

import pytest

from tests.chaos.kafka.crash_points import POINTS
from tests.chaos.kafka.matrix import CELLS, CHANGES, AnyCell, Cell, Change, run, select
from thulawa.dev.kafka_broker import DevBroker

MAPPED = (
    Cell("driver", "mid batch"),
    Cell("worker", "one committed"),
    Cell("broker", "offset log"),
)
RANKED = (
    Cell("worker", "state half written"),
    Cell("driver", "state commit"),
    Change("older checkpoint", "rank"),
)
CHANGED = (Change("other tasks", "map"), Change("recreated topic", "map"))


@pytest.mark.timeout(1_200)  # several drivers, one after the other; the rig has shorter timeouts
@pytest.mark.parametrize("cells", [(*MAPPED, *CHANGED), RANKED], ids=["map_by_key", "streams"])
def test_a_killed_driver_worker_or_broker_loses_duplicates_and_reorders_nothing(
    broker: DevBroker, tmp_path: Path, cells: tuple[AnyCell, ...]
) -> None:
    rows = list(run(cells, broker.up(), tmp_path, rounds=1, seed=7))
    jobs = {cell.job for cell in cells}
    assert len(rows) == len(cells) + len(jobs), (
        "a row for each cell, and one for the output of each job"
    )
    assert [row for row in rows if not row["clean"]] == []


def test_the_matrix_has_every_victim_at_every_point() -> None:
    assert len(CELLS) == len(set(CELLS)) == 3 * len(POINTS)
    assert [cell.name for cell in select(["broker/mid"])] == ["broker/mid batch"]
    assert select([]) == [*CELLS, *CHANGES]
