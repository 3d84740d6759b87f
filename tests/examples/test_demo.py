"""The demonstration as a user starts it, and the chart that it draws."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from examples.demo.chart import Bar, Chart

ROOT = Path(__file__).parents[2]


def demo_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=115,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_the_demo_measures_four_systems_and_keeps_order(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    shown = demo_command("--json", "--latency", "50", "--seconds", "3", "--picture", str(picture))
    assert shown.returncode == 0, shown.stderr
    printed = [json.loads(line) for line in shown.stdout.splitlines()]
    systems = ["one_at_a_time", "spark_udf", "thulawa", "continuous"]
    assert [row["system"] for row in printed] == systems
    for row in printed:
        assert list(row) == [
            "system", "latency_ms", "events_per_second", "p50_ms", "p99_ms", "order_violations",
        ]  # fmt: skip
        assert row["latency_ms"] == 50
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    rows = {row["system"]: row for row in printed}
    assert rows["one_at_a_time"]["events_per_second"] <= 20
    assert rows["spark_udf"]["events_per_second"] <= 20
    assert [row["order_violations"] for row in rows.values()] == [0, 0, 0, 0]
    assert "paper" not in shown.stderr  # the paper has no lookups of 50 ms
    assert "WARN" not in shown.stderr  # Spark's own output stays away
    assert ET.parse(picture).getroot().tag.endswith("svg")  # noqa: S314 we wrote it


def test_a_picture_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    shown = demo_command("--picture", str(tmp_path / "none" / "demo.svg"))
    assert shown.returncode == 2
    assert "--picture" in shown.stderr


def test_the_demo_says_that_java_is_missing(tmp_path: Path) -> None:
    shown = demo_command("--picture", str(tmp_path / "demo.svg"), JAVA_HOME=str(tmp_path))
    assert shown.returncode == 1
    assert "openjdk" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    "groups", [{}, {"a": []}, {"a": [Bar("<&>", 0, "red")]}], ids=["none", "empty", "odd"]
)
def test_any_chart_is_well_formed(groups: dict[str, list[Bar]]) -> None:
    drawn = Chart(
        title='"quoted" & <odd>',
        subtitle="",
        axis="axis",
        groups=groups,
        goal=0,
        goal_name="goal",
    ).svg()
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 we wrote it
