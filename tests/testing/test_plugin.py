"""The pytest plugin offers the test driver as a fixture."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = """
from thulawa.streams import StreamsBuilder

closed = []

def test_a_program(topology_test_driver):
    builder = StreamsBuilder()
    builder.stream("in").map_values(len).to("out")
    driver = topology_test_driver(builder.build())
    driver.create_input_topic("in").pipe_input("k", "tea")
    assert driver.create_output_topic("out").read_key_value() == ("k", 3)
"""


def test_the_fixture_makes_drivers(tmp_path: Path) -> None:
    example = tmp_path / "test_example.py"
    example.write_text(EXAMPLE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "thulawa.testing.plugin", str(example)]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
