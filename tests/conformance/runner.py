"""Run one case in the test driver and compare what leaves with what Kafka Streams gave."""

import json
import re
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.conformance.programs import build
from thulawa.core.partitioning import partition_of
from thulawa.core.records import Windowed
from thulawa.core.serdes import Serdes
from thulawa.testing import TopologyTestDriver

# step, node, key, window, value, timestamp
Row = tuple[int, str, Any, Any, Any, int]


@dataclass
class Verdict:
    """Whether a case passed; if not, expected and actual rows side by side."""

    case: str
    passed: bool
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    error: str = ""


def load(file: Path) -> list[dict[str, Any]]:
    """Read the cases of a file."""
    cases: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return cases


def run(case: dict[str, Any], *, restart: bool = False, partitions: int = 1) -> Verdict:
    """Run a case and judge it; with ``restart`` all tasks are made anew after every input.

    A case that does not say how many ``partitions`` its topics have gets as many as said here.
    """
    try:
        count = partitions_of(case, partitions)
        actual = outputs(case, restart=restart, partitions=count)
        if "partitions" not in case and count > 1:
            return _verdict(case, expected_of_partitions(case, count), actual)
    except Exception:  # noqa: BLE001 a case that raises has failed, and says how
        return Verdict(case["id"], passed=False, error=traceback.format_exc())
    return judge(case, actual)


def partitions_of(case: dict[str, Any], default: int) -> int:
    """Return how many partitions a case's topics have.

    One, if records change partitions in front of what has a time or a bound of its own in each
    task: nothing recorded says what that gives with more.
    """
    by_task = any(
        "window" in node or node["op"] in ("suppress", "process") for node in case["topology"]
    )
    count: int = case.get("partitions", 1 if by_task and _repartitions(case) else default)
    return count


def _repartitions(case: dict[str, Any]) -> bool:
    return any(sink.internal for group in build(case).subtopologies() for sink in group.sinks)


def expected_of_partitions(case: dict[str, Any], partitions: int) -> list[tuple[Row, bool]]:
    """Return what a case gives whose topics have several partitions.

    Each task has a stream time of its own and is the case over again, with the inputs of its
    partition. Where records change partitions on their way, the outputs are the recorded ones.
    """
    if _repartitions(case):
        return expected_rows(case)
    rows: list[Row] = []
    for partition in range(partitions):
        rows += outputs(case, steps=steps_of(case, partition, partitions))
    rows.sort(key=lambda row: row[0])
    return [(row, False) for row in rows[: _recorded(case)]]


def steps_of(case: dict[str, Any], partition: int, partitions: int) -> set[int]:
    """Return the inputs that a partition gets; global tables and the clock belong to all."""
    written = Serdes.json().dumps
    everywhere = {node["topic"] for node in case["topology"] if node["op"] == "global_table"}
    return {
        step
        for step, entry in enumerate(case["inputs"])
        if "topic" not in entry
        or entry["topic"] in everywhere
        or partition_of(written(entry["key"]), partitions) == partition
    }


def outputs(
    case: dict[str, Any],
    *,
    restart: bool = False,
    partitions: int = 1,
    steps: set[int] | None = None,
) -> list[Row]:
    """Feed a case's inputs one at a time; give all outputs with the step that caused them.

    With ``steps`` only those inputs are fed.
    """
    rows: list[Row] = []
    with TopologyTestDriver(build(case), key_serde=Serdes.json(), partitions=partitions) as driver:
        topics: dict[str, Any] = {}
        readers = {node: driver.create_output_topic(f"out-{node}") for node in case["outputs"]}
        for step, entry in enumerate(case["inputs"]):
            if steps is not None and step not in steps:
                continue
            if "advance_wall_clock_ms" in entry:
                driver.advance_wall_clock_time(entry["advance_wall_clock_ms"])
            else:
                name = entry["topic"]
                topic = topics.setdefault(name, driver.create_input_topic(name))
                topic.pipe_input(entry["key"], entry["value"], entry["ts"])
            if restart:
                driver.restart()
            for node, reader in readers.items():
                for record in reader.read_records_to_list():
                    key, window = _parts(record.key)
                    rows.append((step, node, key, window, record.value, record.timestamp))
    return rows


def _parts(key: Any) -> tuple[Any, Any]:
    return (key.key, tuple(key.window)) if isinstance(key, Windowed) else (key, None)


def judge(case: dict[str, Any], actual: list[Row]) -> Verdict:
    """Compare per node: in order, or as multisets per step; redundant rows may be absent."""
    return _verdict(case, expected_rows(case), actual)


def _verdict(case: dict[str, Any], wanted: list[tuple[Row, bool]], actual: list[Row]) -> Verdict:
    ordered = case["order"] == "total"
    for node in case["outputs"]:
        expected = [(row, optional) for row, optional in wanted if row[1] == node]
        found = [row for row in actual if row[1] == node][: _recorded(case)]
        same = _same_order(expected, found) if ordered else _same_sets(expected, found)
        if not same:
            return Verdict(case["id"], passed=False, rows=_side_by_side(expected, found))
    return Verdict(case["id"], passed=True)


def expected_rows(case: dict[str, Any]) -> list[tuple[Row, bool]]:
    """Return the recorded rows, each with whether it may be absent."""
    return [(_row(entry), bool(entry.get("redundant"))) for entry in case["expected"]]


def judge_batches(
    case: dict[str, Any],
    expected: list[tuple[Row, bool]],
    last_steps: list[int],
    batches: list[list[Row]],
) -> Verdict:
    """Compare batch by batch: the rows of several steps, known by the last step of each."""

    def batch_of(step: int) -> int:
        return next(last for last in last_steps if step <= last)

    wanted = [((batch_of(row[0]), *row[1:]), optional) for row, optional in expected]
    rows: list[Row] = [
        (last, *row[1:]) for last, batch in zip(last_steps, batches, strict=True) for row in batch
    ]
    return _verdict(case, wanted, rows)


def _recorded(case: dict[str, Any]) -> int | None:
    """Return how many outputs were recorded, where the upstream test did not read them all."""
    note = re.search(r"reads only the first (\d+) outputs", case.get("notes", ""))
    return int(note[1]) if note else None


def _row(entry: dict[str, Any]) -> Row:
    window = tuple(entry["window"]) if entry.get("window") is not None else None
    return entry["step"], entry["node"], entry["key"], window, entry["value"], entry["ts"]


def _same_order(expected: list[tuple[Row, bool]], found: list[Row]) -> bool:
    rest = iter(found)
    row = next(rest, None)
    for want, optional in expected:
        if row == want:
            row = next(rest, None)
        elif not optional:
            return False
    return row is None


def _same_sets(expected: list[tuple[Row, bool]], found: list[Row]) -> bool:
    required = Counter(repr(row) for row, optional in expected if not optional)
    optional = Counter(repr(row) for row, is_optional in expected if is_optional)
    actual = Counter(repr(row) for row in found)
    return not required - actual and not actual - required - optional


def _side_by_side(expected: list[tuple[Row, bool]], found: list[Row]) -> list[tuple[str, str, str]]:
    rows = []
    for want, got in zip_longest([(row, optional) for row, optional in expected], found):
        left = "" if want is None else f"{want[0]}{' (redundant)' if want[1] else ''}"
        right = "" if got is None else str(got)
        rows.append((" " if want is not None and want[0] == got else "!", left, right))
    return rows
