"""A few cells of the crash matrix (`make chaos` has all): nothing lost, doubled or reordered."""

from pathlib import Path

import pytest

from tests.chaos.kafka.matrix import CELLS, CHANGES, AnyCell, Cell, Change, chosen, run
from tests.chaos.kafka.traps import POINTS
from thulawa.dev.kafka_broker import Broker

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


@pytest.mark.timeout(1_200)  # several drivers, one after the other: the rig gives up first
@pytest.mark.parametrize("cells", [(*MAPPED, *CHANGED), RANKED], ids=["map_by_key", "streams"])
def test_what_is_killed_leaves_each_record_once_in_order_and_the_state_right(
    broker: Broker, tmp_path: Path, cells: tuple[AnyCell, ...]
) -> None:
    rows = list(run(cells, broker.up(), tmp_path, rounds=1, seed=7))
    jobs = {cell.job for cell in cells}
    assert len(rows) == len(cells) + len(jobs), "a row for each cell, and one of each job's output"
    assert [row for row in rows if not row["clean"]] == []


def test_the_matrix_has_every_victim_at_every_point() -> None:
    assert len(CELLS) == len(set(CELLS)) == 3 * len(POINTS)
    assert [cell.name for cell in chosen(["broker/mid"])] == ["broker/mid batch"]
    assert chosen([]) == [*CELLS, *CHANGES]
