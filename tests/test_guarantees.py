"""The tests that docs/explanation/guarantees.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_promise_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| ") and "shown by" not in row]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"def {test}" not in (ROOT / file).read_text()
    ]
    assert missing == []
    assert [row for row in rows if "`tests/" not in row] == [], "a promise without a test"
