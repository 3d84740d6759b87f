"""The memory of a worker does not grow with the rows that go through it."""

import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from thulawa.spark.map_by_key.api import map_by_key

ROWS = 400_000
EVERY = 40_000


def resident() -> int:
    """Give the megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def test_a_worker_holds_no_more_at_the_end_of_a_partition_than_early_on(
    spark: SparkSession,
) -> None:
    measure = resident  # travels with the function: workers cannot import this file

    async def sample(row: Any) -> int | None:
        return measure() if row.id % EVERY == EVERY - 1 else None

    # 200 bytes a row: what is kept by mistake adds up to 80 MB, and more as Python values; what is
    # on its way between the threads varies
    rows = spark.range(0, ROWS, 1, 1).selectExpr(
        "id", "id % 1000 as key", "repeat(cast(id % 10 as string), 200) as text"
    )
    mapping = map_by_key(sample, key="key", returns="mb long", keep=["id", "text"])
    samples = [
        row.mb for row in rows.transform(mapping).where("mb is not null").orderBy("id").collect()
    ]
    assert len(samples) == ROWS // EVERY
    assert max(samples[5:]) <= max(samples[:5]) + 20, samples
