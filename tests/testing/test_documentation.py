"""The public face of the kit: its names, and the page that teaches it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thulawa.testing

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "testing.md"
GUIDES = ("test-a-topology", "test-functions-in-virtual-time")


def test_all_public_names_are_sorted_there_and_documented() -> None:
    names = thulawa.testing.__all__
    assert names == sorted(set(names))
    for name in names:
        assert getattr(thulawa.testing, name).__doc__, name


def test_every_public_name_is_on_the_page() -> None:
    page = REFERENCE.read_text()
    assert [name for name in thulawa.testing.__all__ if f"`{name}" not in page] == []


@pytest.mark.parametrize("guide", GUIDES)
def test_the_examples_of_the_page_pass_under_pytest(guide: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / f"{guide}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written = sum(block.count("def test_") for block in blocks)
    example = tmp_path / "test_examples.py"
    example.write_text("\n\n".join(blocks))
    run = _pytest(example)
    assert run.returncode == 0, run.stdout
    assert written >= 2
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) >= written


def test_a_failing_run_prints_its_seed_and_thulawa_seed_replays_it_alone(tmp_path: Path) -> None:
    example = tmp_path / "test_unlucky.py"
    example.write_text(
        "import pytest\n"
        "from thulawa.testing import seeds, simulate\n"
        "@pytest.mark.parametrize('seed', seeds(20))\n"
        "def test_unlucky(seed):\n"
        "    async def main(simulation):\n"
        "        assert simulation.seed != 13\n"
        "    simulate(main, seed=seed)\n"
    )
    first = _pytest(example)
    assert "1 failed, 19 passed" in first.stdout
    replay = re.search(r"THULAWA_SEED=(\d+) pytest '(\S+)'", first.stdout)
    assert replay is not None
    assert replay.groups() == ("13", "test_unlucky.py::test_unlucky[13]")
    again = _pytest(tmp_path / replay[2], THULAWA_SEED=replay[1])
    assert "1 failed in" in again.stdout


def _pytest(target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(target.parent)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(target)],
        capture_output=True,
        text=True,
        check=False,
        cwd=target.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )
