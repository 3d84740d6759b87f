"""The shared parts of the chaos runs."""

import json
import signal
from pathlib import Path

import pytest

from tests.chaos.harness import CLEAN, Child, Stuck, Verdict, compare, report, wait_until


def test_records_are_compared_in_the_order_of_their_key() -> None:
    expected = ["a1", "b1", "a2", "b2", "a3"]
    assert compare(expected, {"b": ["b1", "b2"], "a": ["a1", "a2", "a3"]}) == CLEAN
    found = {"a": ["a1", "a3", "a2", "a2"], "b": ["b1", "x"]}
    assert compare(expected, found) == Verdict(lost=1, duplicated=1, reordered=1, phantom=1)


def test_differences_of_a_later_verdict_exclude_those_of_an_earlier_one() -> None:
    assert Verdict(lost=3, wrong=1) - Verdict(lost=2) == Verdict(lost=1, wrong=1)


def test_waiting_ends_with_an_error_only_without_progress() -> None:
    steps = iter([1] * 5)
    wait_until(lambda: next(steps, None) is None, lambda: True, timeout=0, poll=0)
    with pytest.raises(Stuck, match="no progress for 0 s; 7 of 9"):
        wait_until(lambda: False, timeout=0, state=lambda: "7 of 9", poll=0)


def test_a_child_that_ends_by_itself_is_reported_with_its_own_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier child")
    child = Child("tests.chaos.no_such_module", log=log)
    try:
        assert child.wait(60) == 1
        with pytest.raises(Stuck, match=r"exit code 1(?s:.*)no_such_module"):
            child.check_running()
        assert "earlier" not in child.output()
    finally:
        child.kill()


def test_a_killed_child_has_ended(tmp_path: Path) -> None:
    child = Child("code", log=tmp_path / "log")  # an interpreter that waits for its stdin
    assert child.wait(0) is None
    child.check_running()
    child.kill()
    assert child.exit_code == -signal.SIGKILL


def test_a_report_fails_if_a_row_is_not_clean(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"output": "good", "clean": True}, {"output": "bad", "clean": False}]
    sections = [("outputs", "Outputs", rows)]
    assert report("chaos", sections, as_json=True, seed=7) == 1
    machine, *printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert machine["seed"] == "7"
    assert [row["output"] for row in printed] == ["good", "bad"]
    assert report("chaos", [("outputs", "Outputs", rows[:1])], as_json=False) == 0
    assert "good" in capsys.readouterr().out
