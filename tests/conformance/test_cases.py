"""Every recorded case gives what Kafka Streams gave."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main
from tests.conformance.runner import judge, load, outputs, run

FILES = sorted((Path(__file__).parent / "cases").glob("*.json"))
CASES = [case for file in FILES for case in load(file)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_outputs_equal_those_of_kafka_streams(case: dict[str, Any]) -> None:
    verdict = run(case)
    assert verdict.passed, verdict.error or "\n".join(map(str, verdict.rows))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_nothing_is_kept_elsewhere_than_in_stores_and_snapshots(case: dict[str, Any]) -> None:
    verdict = run(case, restart=True)
    assert verdict.passed, verdict.error or "\n".join(map(str, verdict.rows))


def test_all_cases_are_there() -> None:
    counts = {file.stem: len(load(file)) for file in FILES}
    assert counts == {"cases": 76, "generated": 148, "recorded": 132}


def test_a_wrong_output_fails_a_case() -> None:
    case = next(case for case in CASES if case["id"] == "filter")
    rows = outputs(case)
    assert judge(case, rows).passed
    assert not judge(case, rows[1:]).passed
    assert not judge(case, [*rows, rows[-1]]).passed
    assert not judge(case, list(reversed(rows))).passed


def test_the_command_prints_what_differs_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in CASES if case["id"] == "filter")
    wrong = {**case, "id": "broken", "expected": case["expected"][1:]}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"cases": [case, wrong]}), encoding="utf-8")
    assert main([str(file), "--only", "filter"]) == 0
    assert main([str(file)]) == 1
    out = capsys.readouterr().out
    assert "--- broken" in out
    assert out.endswith("1 passed, 1 failed\n")
