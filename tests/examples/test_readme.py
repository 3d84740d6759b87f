"""The examples of the README and of the pages that need Spark do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import thulawa
from thulawa.spark.map_by_key.api import MapByKeyOptions

ROOT = Path(__file__).parents[2]
OPTIONS = ROOT / "docs" / "reference" / "map_by_key.md"
SPARK_PAGES = (
    "how-to/batch-calls-and-share-clients",
    "how-to/count-messages-per-window",
    "how-to/handle-failed-rows",
    "how-to/keep-rows-in-order",
    "how-to/prioritize-records",
    "how-to/run-a-streams-application",
    "reference/map_by_key",
)


def with_sources() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(thulawa.__file__).parents[1])}


def run(page: Path, broker: str = "localhost:9092") -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page"}
    # the workers of a session stand where it was started, not where the test has gone
    text = re.sub(r'"(file:)?\./', rf'"\g<1>{Path.cwd()}/', page.read_text())
    text = text.replace("localhost:9092", broker)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(page), "exec"), namespace)  # noqa: S102 our own text
    return namespace


def test_the_examples_of_the_readme_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for commands in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        subprocess.run(["sh", "-ec", commands], check=True, env=with_sources())  # noqa: S607
    namespace = run(ROOT / "README.md")
    assert namespace["spark"] is spark
    assert namespace["visits_of_one"] == 2
    located = thulawa.embedded.Log("file:./topics").read("located", 0, 0)
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in located:
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {b"10.0.0.1": [b"LK", b"LK"], b"10.0.0.2": [b"NO"]}


def test_the_example_of_the_engine_runs() -> None:
    page = ROOT / "docs" / "how-to" / "use-the-engine-without-spark.md"
    assert run(page)["results"] == ["HELLO"] * 9


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", SPARK_PAGES)
def test_the_examples_of_the_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / f"{name}.md"
    assert "assert" in page.read_text()
    run(page)


def test_every_option_is_on_the_page() -> None:
    page = OPTIONS.read_text()
    missing = [name for name in MapByKeyOptions.__annotations__ if f"`{name}`" not in page]
    assert missing == []
