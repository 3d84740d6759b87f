"""Recorded cases give the same on the continuous host, with restarts and crashes at random points.

A part of them; all of them by ``make conformance-continuous``.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.continuous import run_continuously
from tests.conformance.runner import load

CASES = Path(__file__).parent / "cases"
FEW = [case for name in ("cases", "generated", "recorded") for case in load(CASES / f"{name}.json")]
# The two answers to a changed foreign key come from two tasks, in any order.
DETERMINED = [case for case in FEW if not case["id"].startswith("fk-left")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cases", "partitions"), [(FEW[::5], 1), (DETERMINED[2::7], 4)], ids=["one partition", "four"]
)
def test_outputs_of_the_continuous_host_equal_those_of_kafka_streams(
    cases: list[dict[str, Any]], partitions: int
) -> None:
    verdicts = list(run_continuously(cases, partitions=partitions))
    failed = [verdict for verdict in verdicts if not verdict.passed]
    assert not failed, "\n".join(f"{one.case}: {one.error or one.rows}" for one in failed)
    assert len(verdicts) >= 50
