"""Links and paths in the documentation point to what exists, and every example is a test."""

import inspect
import re
import subprocess
from pathlib import Path

import pytest

from tests.brokers.embedded.test_documentation import GUIDE as LOG_GUIDE
from tests.examples.test_readme import SPARK_PAGES
from tests.streams.test_documentation import PAGES as STREAMS_PAGES
from tests.testing.test_documentation import GUIDES as TESTING_GUIDES
from thulawa import engine, kafka, streams
from thulawa.health import WindowCounts
from thulawa.spark.application.execution import Execution

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
PATH = re.compile(
    r"`((?:src|tests|docs|examples|benchmarks|scripts|grafana)/[\w./*-]*|\w+/[\w/]+\.py)`"
)
OPTIONS = [
    ("application", Execution),
    ("application", streams.AdaptiveBatchSize),
    ("application", streams.Restart),
    ("application", streams.TaskOptions),
    ("engine", engine.Adaptive),
    ("engine", engine.Batch),
    ("engine", engine.Bounds),
    ("engine", engine.Options),
    ("engine", engine.Quarantine),
    ("engine", engine.Rate),
    ("engine", engine.Retry),
    ("kafka", kafka.Policies),
    ("kafka", kafka.SinkSpec),
    ("kafka", kafka.TopicSpec),
    ("topic-health", WindowCounts),
]
FOR_TESTS = {"clock"}
ELSEWHERE = {  # pages with examples that tests of their own run
    "docs/how-to/read-and-write-kafka.md",  # tests/brokers/kafka/test_examples.py
    "docs/how-to/use-the-engine-without-spark.md",  # tests/examples/test_readme.py
    "docs/tutorial.md",  # tests/examples/test_tutorial.py
    "README.md",  # tests/examples/test_readme.py
}


def pages() -> list[Path]:
    """Return all Markdown files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading: `code`\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-heading-code) [c](gone.md) [d](there.md#gone)\n")
    assert broken_links(page) == ["gone.md", "there.md#gone"]


@pytest.mark.parametrize(
    "name",
    ["CONTRIBUTING.md", "docs/glossary.md", "docs/explanation/streams-runtime.md"],
)
def test_every_path_that_is_named_exists(name: str) -> None:
    named = PATH.findall((ROOT / name).read_text())
    places = (ROOT, ROOT / "src" / "thulawa")
    missing = [path for path in named if not any(any(place.glob(path)) for place in places)]
    assert named
    assert missing == []


def test_every_decision_is_in_the_index_in_order() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^\| \[\d{4}\]\((\S+)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(page.name for page in folder.glob("0*.md"))


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    listed = {(docs / link).resolve() for link in LINK.findall((docs / "README.md").read_text())}
    found = {page for page in docs.rglob("*.md") if page.parent.name != "adr"}
    assert found - listed - {docs / "README.md"} == set()


@pytest.mark.parametrize(("page", "options"), OPTIONS, ids=str)
def test_every_option_is_in_the_reference(page: str, options: type) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    names = [name for name in inspect.signature(options).parameters if name != "topics"]
    assert [name for name in names if f"`{name}`" not in text and name not in FOR_TESTS] == []


def test_every_example_is_run_by_a_test() -> None:
    run = {f"docs/{name}.md" for name in (*SPARK_PAGES, *STREAMS_PAGES)}
    run |= {f"docs/how-to/{name}.md" for name in TESTING_GUIDES}
    run |= {str(LOG_GUIDE.relative_to(ROOT))} | ELSEWHERE
    shown = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    examples = {str(page.relative_to(ROOT)) for page in shown if "```python" in page.read_text()}
    assert examples == run
