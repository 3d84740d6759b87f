"""The `thulawa` command as a user types it."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import thulawa
from thulawa.cli.chart import Bar, Chart

# what decides which source is run, and how fast; the rest of the environment is left out
KEPT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "JAVA_HOME")


def thulawa_command(
    *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("thulawa")
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.run(
        [str(command), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=115,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", **kept, **environment},
    )


def test_help_lists_the_commands() -> None:
    shown = thulawa_command("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    assert "doctor" in shown.stdout
    assert "topics" in shown.stdout
    assert "Exit codes" in shown.stdout


def test_version_is_the_package_s() -> None:
    assert thulawa_command("--version").stdout.strip() == thulawa.__version__


def test_an_unknown_command_is_refused_with_exit_code_2() -> None:
    assert thulawa_command("dance").returncode == 2


def test_the_doctor_names_a_missing_java_and_what_to_install(tmp_path: Path) -> None:
    shown = thulawa_command("doctor", "--json", JAVA_HOME=str(tmp_path))
    assert shown.returncode == 1
    findings = {row["what"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert findings["Java"]["state"] == "missing"
    assert "openjdk" in findings["Java"]["advice"]
    assert findings["Python"]["state"] == "ok"


def test_the_doctor_says_that_a_broker_does_not_answer() -> None:
    shown = thulawa_command("doctor", "--json", THULAWA_KAFKA="127.0.0.1:1")
    findings = {row["what"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert findings["Kafka broker"]["state"] == "missing"
    assert shown.returncode == 1


def test_a_first_fetch_of_jars_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "java").touch(mode=0o755)  # Maven alone is missing
    here = str(tmp_path)
    environment = {"PATH": here, "JAVA_HOME": "", "THULAWA_CACHE": here}
    shown = thulawa_command("kafka", "up", "--port", "0", **environment)
    assert shown.returncode == 1
    assert shown.stderr.startswith("fetching")
    assert "mvn" in shown.stderr


def test_the_demo_measures_three_systems_and_keeps_order(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    shown = thulawa_command(
        "demo", "--json", "--latency", "50", "--seconds", "3", "--picture", str(picture)
    )
    assert shown.returncode == 0, shown.stderr
    printed = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["system"] for row in printed] == ["one_at_a_time", "spark_udf", "thulawa"]
    for row in printed:
        assert list(row) == [
            "system", "latency_ms", "events_per_second", "p50_ms", "p99_ms", "order_violations",
        ]  # fmt: skip
        assert row["latency_ms"] == 50
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    rows = {row["system"]: row for row in printed}
    assert rows["one_at_a_time"]["events_per_second"] <= 20
    assert rows["spark_udf"]["events_per_second"] <= 20
    assert [row["order_violations"] for row in rows.values()] == [0, 0, 0]
    assert "paper" not in shown.stderr  # the paper has no lookups of 50 ms
    assert "WARN" not in shown.stderr  # Spark's own output stays away
    assert ET.parse(picture).getroot().tag.endswith("svg")  # noqa: S314 we wrote it


def test_a_picture_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    shown = thulawa_command("demo", "--picture", str(tmp_path / "none" / "demo.svg"))
    assert shown.returncode == 2
    assert "--picture" in shown.stderr


def test_the_demo_says_that_java_is_missing(tmp_path: Path) -> None:
    shown = thulawa_command(
        "demo", "--picture", str(tmp_path / "demo.svg"), JAVA_HOME=str(tmp_path)
    )
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
