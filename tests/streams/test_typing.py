"""A wrong program is an error in the editor."""

import re
from pathlib import Path

import pytest
from mypy import api

PROGRAMS = Path(__file__).with_name("typed_programs.txt")


@pytest.mark.timeout(600)  # mypy without its cache, on a crowded machine
def test_the_type_checker_finds_exactly_what_is_wrong(tmp_path: Path) -> None:
    text = PROGRAMS.read_text(encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    cache = str(tmp_path / "cache")
    out, _, _ = api.run(["--strict", "--config-file=", "--cache-dir", cache, str(program)])
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", out)}
    marked = {n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert found == marked, out
    assert len(marked) >= 15
