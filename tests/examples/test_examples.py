"""The examples run, and show what they are about."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(400)
def test_the_orders_of_the_bucket_pattern_are_shipped_by_priority(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_orders(tmp_path / "priority.svg")
    assert_by_priority(capsys.readouterr().out)
    drawn = (tmp_path / "priority.svg").read_text()
    for words in ("no priorities", "buckets by weight", "strictly Platinum first"):
        assert words in drawn


def run_orders(picture: Path, *more: str) -> None:
    """Run the example for a few seconds."""
    example = runpy.run_path(str(EXAMPLES / "priority_orders.py"))
    example["main"](["--seconds", "4", "--svg", str(picture), *more])


def assert_by_priority(told: str) -> None:
    """See that Platinum has a larger part of what was shipped where there are priorities."""
    assert "{'Platinum': [0, 1, 2, 3], 'Gold': [4, 5]}" in told
    shipped = {
        (arm, bucket): int(count)
        for arm, bucket, count in re.findall(r"(\w+) +(\w+): +(\d+) shipped", told)
    }
    parts = {
        arm: shipped[arm, "Platinum"] / (shipped[arm, "Platinum"] + shipped[arm, "Gold"])
        for arm in ("none", "weighted", "strict")
    }
    assert parts["none"] < min(parts["weighted"], parts["strict"]), told


def test_a_picture_shows_each_bucket_of_each_way(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "priority_orders.py"))
    one: dict[str, Any] = {"shipped": 3, "p50": 1.0, "p99": 2.5}
    nothing = one | {"shipped": 0}
    found = {"none": {"Platinum": one, "Gold": one}, "strict": {"Platinum": one, "Gold": nothing}}
    drawn = example["picture"](found, "a test", 4)
    assert drawn.count("Platinum: 2.5") == 2
    assert drawn.count("Gold: 2.5") == 1
    assert "strictly Platinum first (Gold: none)" in drawn
