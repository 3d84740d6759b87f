"""Facts about the benchmarks: the arithmetic behind their percentages, and what they print."""

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engine, priority
from benchmarks.harness import Measured
from benchmarks.memory import SCENARIOS
from benchmarks.report import TARGET, Column, Progress, Report, figure, judge
from benchmarks.workload import (
    DISTRIBUTIONS,
    ZIPF_KEYS,
    Keys,
    Workload,
    least_seconds,
    workload,
    zipf_weights,
)

README = Path(engine.__file__).with_name("README.md")


@pytest.mark.parametrize(
    ("keys", "in_flight", "ceiling"),
    [(1, 1_000, 10), (100, 1_000, 1_000), (1_000, 1_000, 10_000), (1_000, 100, 1_000)],
)
def test_the_ceiling_is_the_smaller_of_keys_and_in_flight_by_latency(
    keys: int, in_flight: int, ceiling: float
) -> None:
    load = Workload([number % keys for number in range(10_000)], 0.1, in_flight, 0)
    assert load.ceiling == pytest.approx(ceiling)


def test_the_ceiling_of_skewed_keys_is_set_by_the_most_frequent_one() -> None:
    keys = ["hot"] * 40 + [f"cold {number}" for number in range(60)]
    assert least_seconds(keys, 0.5, in_flight=1_000) == 20
    assert least_seconds(keys, 0.5, in_flight=2) == 25
    assert Workload(keys, 0.5, 1_000, 0).ceiling == 5


def test_calls_that_take_no_time_have_no_ceiling() -> None:
    assert Workload([1, 2, 3], 0.0, 10, 0).ceiling is None


@pytest.mark.parametrize("exponent", [1.0, 1.5])
def test_keys_are_drawn_as_often_as_zipf_says(exponent: float) -> None:
    records = 200_000
    drawn = Counter(Keys("Zipf", zipf=exponent).draw(records))
    weights = zipf_weights(exponent, ZIPF_KEYS)
    for rank in (1, 2, 3, 10):
        expected = records * weights[rank - 1] / sum(weights)
        assert drawn[rank - 1] == pytest.approx(expected, abs=5 * expected**0.5)


def test_the_same_keys_are_drawn_every_time() -> None:
    keys = Keys("Zipf", zipf=1.0)
    assert keys.draw(100) == keys.draw(100)


@pytest.mark.parametrize("keys", DISTRIBUTIONS, ids=lambda keys: keys.name)
@pytest.mark.parametrize("latency", [0.0, 0.005, 0.25])
@pytest.mark.parametrize("in_flight", [100, 10_000])
def test_a_workload_takes_about_as_long_as_asked(
    keys: Keys, latency: float, in_flight: int
) -> None:
    load = workload(keys, latency, in_flight, seconds=1.0, fastest=70_000)
    records = len(load.keys)
    by_calls = least_seconds(load.keys, latency, in_flight)
    assert 0.4 <= max(by_calls, records / 70_000) <= 2.5
    assert 0 <= load.lead_in < records
    if load.lead_in and latency:
        assert records % load.lead_in == 0, "the part that is timed is whole rounds"


def test_a_rate_counts_only_what_the_clock_has_seen() -> None:
    assert Measured(records=1_000, events=900, seconds=3.0, peak=1, cpu=0.1).rate == 300


def test_a_text_table_is_aligned_and_says_whether_targets_are_met() -> None:
    out = io.StringIO()
    columns = [Column("keys", "keys"), Column("rate", "events/s", figure), TARGET]
    rows = [
        judge({"keys": "1", "rate": 61_000.0}, "rate", 60_000, "≥ 60,000"),
        judge({"keys": "100", "rate": 9.5}, "rate", 60_000, "≥ 60,000"),
        {"keys": "all", "rate": None},
    ]
    Report("x", Progress(io.StringIO()), out=out).section("s", "Title", columns, rows, ["A note."])
    assert out.getvalue().splitlines() == [
        "",
        "Title",
        "  keys  events/s  target",
        "  ----  --------  ----------------",
        "     1    61,000  ≥ 60,000: met",
        "   100       9.5  ≥ 60,000: MISSED",
        "   all         –  –",
        "  A note.",
    ]


def test_the_memory_run_is_the_one_that_was_asked_for() -> None:
    assert max(scenario.records for scenario in SCENARIOS) == 10_000_000
    assert all(scenario.keys == 1_000_000 for scenario in SCENARIOS)


def documented_fields() -> dict[str, set[str]]:
    """Read the list of sections and their fields in the README's part about the engine."""
    text = README.read_text(encoding="utf-8").partition("### Its rows")[2].partition("\n#")[0]
    lines = re.findall(r"^- `([\w ]+)`: (.+)$", text, re.MULTILINE)
    return {section: set(re.findall(r"`(\w+)`", fields)) for section, fields in lines}


@pytest.mark.timeout(400)  # a busy machine
def test_a_small_run_prints_a_json_object_per_row_with_the_documented_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine.main(["--quick", "--json", "--seconds", "0.02", "--latency", "0", "--latency", "5"])
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    documented = documented_fields()
    assert {row["section"] for row in rows} == documented.keys()
    for row in rows:
        assert row.keys() - {"target", "met"} == documented[row["section"]] | {
            "benchmark",
            "section",
        }
        assert ("target" in row) == ("met" in row)
    cells = [row for row in rows if row["section"] == "table"]
    assert len(cells) == 2 * 3
    assert all(row["events_per_second"] > 0 and row["peak_in_flight"] >= 1 for row in cells)
    assert all(0 < row["percent_of_ceiling"] < 120 for row in cells if row["latency_ms"])


def test_priorities_hold_what_they_promise_in_virtual_time() -> None:
    plan = priority.Plan(in_flight=10, latency=0.1, seconds=6, virtual=True)
    rows = [*priority.overloaded(plan, Progress()), *priority.shares(plan, Progress())]
    judged = [row for row in rows if "target" in row]
    assert len(judged) == 5
    assert [row for row in judged if not row["met"]] == []
    assert rows[1]["times"] > 5, "without priorities"
