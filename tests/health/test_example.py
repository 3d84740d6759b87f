"""The example counts what its generator sent, and uses public names only."""

import ast
from pathlib import Path
from xml.etree import ElementTree as ET

from examples.topic_health import demo
from examples.topic_health.generator import Generator
from examples.topic_health.messages import PAYMENT
from tests.health.local import LocalCounts
from thulawa.brokers.embedded import Log
from thulawa.health import json_schema

FOLDER = Path(demo.__file__).parent
PUBLIC = {"thulawa", "thulawa.health", "thulawa.brokers.embedded"}


def test_payments_are_counted_as_they_were_sent(tmp_path: Path) -> None:
    with Log(f"file:{tmp_path}/topics") as log:
        log.create_topic("payments", partitions=4)
        generator = Generator(log, "payments", 4, invalid=0.3, late=0.2)
        for second in range(5):
            generator.send(500, 1_700_000_000_000 + second * 1_000)
        health = LocalCounts(
            "payments",
            status=json_schema(PAYMENT),
            output="metrics",
            application_id="health",
            log=log.address,
        )
        assert health.count_available() == 2_500
    rows = demo._rows(generator, health.counts())
    assert [counted for _, _, counted in rows] == [sent for _, sent, _ in rows]
    assert 0 < generator.late_ones < 2_500
    assert sum(bad for _, _, (_, bad) in rows) > 500
    assert ET.fromstring(demo._picture(rows)).tag.endswith("svg")  # noqa: S314 our own


def test_the_application_uses_public_names_only() -> None:
    for name in ("__main__.py", "generator.py", "messages.py"):
        tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {module for module in modules if module.startswith("thulawa")}
        assert ours <= PUBLIC, name
