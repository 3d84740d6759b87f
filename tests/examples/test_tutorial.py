"""Every command and file of the tutorial works, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")  # one Spark at a time
def test_the_tutorial_leads_to_a_dashboard(tmp_path: Path) -> None:
    blocks = re.findall(r"([^\n]*)\n\n```(python|sh|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = ""
    for before, kind, text in blocks:
        if kind == "python":
            name = re.findall(r"Create `(\w+\.py)`:$", before)
            (tmp_path / name[0]).write_text(text)
        elif kind == "sh":
            printed = run(text, tmp_path)
        else:
            for line in text.splitlines():
                assert line in printed
    assert [kind for _, kind, _ in blocks].count("text") == 3


def run(commands: str, folder: Path) -> str:
    """Run commands in a folder with this Python first, and return what they print."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # app.py is edited within a second
    }
    done = subprocess.run(
        ["sh", "-ec", commands],  # noqa: S607 the shell of the reader
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout
