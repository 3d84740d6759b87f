"""Recorded cases give the same on Spark, in random micro-batches and over restarts.

A part of them: short ones of every kind, and some of the random programs. All of them, and
other ways to cut the batches, by ``make conformance-spark``.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runner import load
from tests.conformance.spark import run_on_spark

CASES = Path(__file__).parent / "cases"
SHORT = [
    case
    for case in load(CASES / "cases.json")
    if len(case["inputs"]) <= 6
    and not any("advance_wall_clock_ms" in entry for entry in case["inputs"])
]
RANDOM = load(CASES / "generated.json")[::8]


@pytest.mark.timeout(300)  # dozens of programs, and on a busy machine a session to start
@pytest.mark.parametrize("cases", [SHORT, RANDOM], ids=["short", "random"])
def test_outputs_on_spark_equal_those_of_kafka_streams(
    cases: list[dict[str, Any]], spark: Any
) -> None:
    failed = [verdict for verdict in run_on_spark(cases, spark=spark) if not verdict.passed]
    assert not failed, "\n".join(f"{one.case}: {one.error or one.rows}" for one in failed)


def test_at_least_fifty_cases_run_here() -> None:
    assert len({case["id"] for case in (*SHORT, *RANDOM)}) >= 50
