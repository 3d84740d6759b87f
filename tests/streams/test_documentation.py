"""The examples on the pages about streams run."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "explanation/determinism",
    "how-to/aggregate-in-two-steps",
    "how-to/call-services-from-a-topology",
    "how-to/edit-an-application",
    "how-to/handle-errors-in-a-topology",
    "how-to/write-a-processor",
    "reference/streams",
)


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_the_page_run(name: str) -> None:
    page = DOCS / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)  # noqa: S102 our own page
