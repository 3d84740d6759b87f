"""The README's examples do what they say."""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run(spark: SparkSession) -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(compile(block, str(README), "exec"), namespace)  # noqa: S102 our own text
    assert namespace["spark"] is spark
    assert sorted(namespace["located"].collect()) == [
        (1, "10.0.0.1", "LK"),
        (2, "10.0.0.2", "NO"),
        (3, "10.0.0.1", "LK"),
    ]
    assert namespace["results"] == ["HELLO"] * 9
