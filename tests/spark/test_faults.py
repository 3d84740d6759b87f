"""The same rows out as in, whatever happens to workers and tasks; what that costs in calls."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from thulawa.spark.mapping import map_by_key


def fail() -> None:
    raise OSError("once")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("fault", [fail, kill], ids=["exception", "killed worker"])
def test_a_task_that_is_run_again_repeats_calls_but_no_rows(
    spark: SparkSession,
    tmp_path: Path,
    fault: Callable[[], None],
    record_property: Callable[[str, object], None],
) -> None:
    calls, struck = str(tmp_path / "calls"), str(tmp_path / "struck")

    async def unlucky(row: Any) -> int:
        with open(calls, "a", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 a short line
            file.write(f"{row.id}\n")
        if row.id == 1417 and not os.path.exists(struck):  # noqa: ASYNC240, PTH110 once
            os.close(os.open(struck, os.O_CREAT))
            fault()
        return int(row.id)

    rows = spark.range(0, 3000, 1, 1).selectExpr("id", "id % 10 as visitor")
    mapping = map_by_key(unlucky, key="visitor", returns="seen long", keep=["id"])
    out = rows.transform(mapping).collect()
    assert sorted(out) == [(number, number) for number in range(3000)]
    made = Counter(Path(calls).read_text(encoding="ascii").split())
    record_property("repeated_calls", made.total() - 3000)
    assert len(made) == 3000
    assert made["1417"] == 2
    assert max(made.values()) == 2
