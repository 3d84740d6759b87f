"""Every recorded case gives what Kafka Streams gave."""

import json
import re
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_topics_may_have_several_partitions(case: dict[str, Any]) -> None:
    verdict = run(case, partitions=3)
    assert verdict.passed, verdict.error or "\n".join(map(str, verdict.rows))


def case_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return a case with other fields."""
    return {**next(case for case in CASES if case["id"] == name), **changes}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (case_of("filter", until=3), r"the case has the unknown fields \['until'\]"),
        (case_of("filter", order="any"), "order is 'any'"),
        (case_of("filter", inputs=[{"topic": "in", "key": 1, "value": 1, "at": 1}]), r"\['at'\]"),
        (case_of("filter", topology=[{"id": "a", "op": "sort"}]), r"'a' \(sort\): the operator"),
        (
            case_of("filter", topology=[{"id": "a", "op": "stream", "topic": "in", "grace_ms": 1}]),
            r"node 'a' \(stream\) has the unknown fields \['grace_ms'\]",
        ),
        (
            case_of(
                "filter",
                topology=[
                    {"id": "a", "op": "stream", "topic": "in"},
                    {"id": "b", "op": "cogroup", "in": ["a"], "window": {"type": "time", "x": 1}},
                ],
            ),
            r"the window of node 'b' \(cogroup\) has the unknown fields \['x'\]",
        ),
        (
            case_of("filter", topology=[{"id": "a", "op": "suppress", "until": "tomorrow"}]),
            "until is 'tomorrow'",
        ),
    ],
)
def test_a_field_that_is_not_translated_fails_a_case(case: dict[str, Any], message: str) -> None:
    verdict = run(case)
    assert not verdict.passed
    assert re.search(message, verdict.error), verdict.error


def test_the_grace_of_a_join_with_a_table_is_translated() -> None:
    inputs = [("left", "a", 20), ("right", "A", 15), ("left", "b", 31), ("left", "c", 42)]
    rows = [("a+A", 20, 2), ("b+A", 31, 3)]  # each leaves when time is 10 ms beyond it
    case = {
        "id": "grace",
        "topology": [
            {"id": "l", "op": "stream", "topic": "left"},
            {
                "id": "r",
                "op": "table",
                "topic": "right",
                "versioned": True,
                "history_retention_ms": 100,
            },
            {
                "id": "out",
                "op": "stream_table_join",
                "in": ["l", "r"],
                "type": "inner",
                "joiner": "plus",
                "grace_ms": 10,
            },
        ],
        "outputs": ["out"],
        "inputs": [{"topic": t, "key": "k", "value": v, "ts": at} for t, v, at in inputs],
        "expected": [
            {"step": step, "node": "out", "key": "k", "value": value, "ts": at}
            for value, at, step in rows
        ],
        "order": "total",
    }
    verdict = run(case)
    assert verdict.passed, verdict.error or verdict.rows


def test_a_case_may_say_how_many_partitions_there_are() -> None:
    case = next(case for case in CASES if case["id"] == "filter")
    assert run({**case, "partitions": 4}).passed


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
