"""The public face of the log: its names, and the page that teaches it."""

import re
import tempfile
from pathlib import Path

import pytest

import thulawa.brokers.embedded

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = DOCS / "reference" / "embedded-log.md"
GUIDE = DOCS / "how-to" / "use-the-embedded-log.md"
# Described where the thing they come from is described.
RESULTS = {
    "Appended",
    "Cleaned",
    "Columns",
    "ConsumerRecord",
    "PartitionDescription",
    "TopicDescription",
}


def test_all_public_names_are_sorted_there_and_documented() -> None:
    names = thulawa.brokers.embedded.__all__
    assert names == sorted(set(names))
    for name in names:
        assert getattr(thulawa.brokers.embedded, name).__doc__, name


def test_every_public_name_is_on_the_page() -> None:
    page = REFERENCE.read_text()
    missing = {
        name for name in thulawa.brokers.embedded.__all__ if not re.search(rf"\b{name}\b", page)
    }
    assert missing <= RESULTS


def run(blocks: list[str]) -> None:
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), {})  # noqa: S102 - our own page


@pytest.mark.usefixtures("spark")
def test_the_examples_of_the_page_run_as_often_as_one_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert sum(block.count("assert") for block in blocks) >= 8
    run(blocks)
    run(blocks)
    assert len(list(tmp_path.glob("*/topics/CURRENT"))) == 2


def test_the_example_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = (thulawa.brokers.embedded.__doc__ or "").split("::", 1)[1].partition("\nWhat holds")[0]
    run([re.sub(r"^ {4}", "", block, flags=re.MULTILINE)])
    assert thulawa.brokers.embedded.Log("file:./topics").topics() == ["last-visit", "visits"]


def test_an_example_that_is_wrong_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        run(["assert 1 == 2"])
