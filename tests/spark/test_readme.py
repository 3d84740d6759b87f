"""The examples of the README and of the page on map_by_key do what they say."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import thulawa
from thulawa.spark.choices import Choices

ROOT = Path(__file__).parents[2]
OPTIONS = ROOT / "docs" / "map_by_key.md"


def run(page: Path, folder: Path) -> dict[str, Any]:
    """Run the page's examples; what is written as ``./`` of Spark goes to the folder."""
    namespace: dict[str, Any] = {"__name__": "page"}
    # the JVM was started elsewhere, and a checkpoint of an earlier run has seen all rows
    text = page.read_text().replace('"./checkpoint"', repr(str(folder / "checkpoint")))
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(page), "exec"), namespace)  # noqa: S102 our own text
    return namespace


def test_the_examples_of_the_readme_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = run(ROOT / "README.md", tmp_path)
    assert namespace["spark"] is spark
    located = thulawa.Log("file:./topics").read("located", 0, 0)
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in located:
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {b"10.0.0.1": [b"LK", b"LK"], b"10.0.0.2": [b"NO"]}
    assert namespace["results"] == ["HELLO"] * 9


def test_the_examples_of_the_options_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "assert" in OPTIONS.read_text()
    run(OPTIONS, tmp_path)


def test_every_option_is_on_the_page() -> None:
    page = OPTIONS.read_text()
    missing = [name for name in Choices.__annotations__ if f"`{name}`" not in page]
    assert missing == []
