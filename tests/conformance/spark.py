"""Run cases through a real streaming query, many side by side, in random micro-batches.

All cases are parts of one program, each with topics of its own. A batch takes a few inputs of
every case, cut at random but so that a task meets them in the order they were recorded in: of
several topics it takes the earliest record first. The query is stopped and started from its
checkpoint at random points. Steps are known by batch only, so outputs are compared per batch.
"""

import json
import random
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tests.conformance.programs import add_to
from tests.conformance.runner import (
    Row,
    Verdict,
    expected_of_partitions,
    expected_rows,
    judge_batches,
    partitions_of,
    steps_of,
)
from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.core.records import Windowed
from thulawa.core.serdes import Serde, Serdes
from thulawa.runtime.task_options import TaskOptions
from thulawa.spark.application import Streams
from thulawa.spark.session.spark_session import session
from thulawa.streams.operator_options import Produced
from thulawa.streams.streams_builder import StreamsBuilder

Case = dict[str, Any]
_MOST = 6  # inputs of a case in one batch
_TOGETHER = 40  # cases in one program
_PATIENCE = "3 minutes"  # for a batch or two; a machine may be busy


def _write(key: Any) -> bytes:
    window = tuple(key.window) if isinstance(key, Windowed) else None
    plain = key.key if isinstance(key, Windowed) else key
    return json.dumps([plain, window]).encode()


TAGGED: Serde[Any] = Serde("key and window", _write, json.loads)


def run_on_spark(
    cases: list[Case],
    *,
    seed: int = 0,
    spark: Any = None,
    partitions: int = 1,
    run: "type[_Run] | None" = None,
) -> Iterator[Verdict]:
    """Run cases; give a verdict for each as soon as it is known. No case waits for ever.

    A case that does not say how many ``partitions`` its topics have gets as many as said here.
    """
    kind = run or _Run
    if spark is None and run is None:
        spark = session("conformance", master="local[2]", settings=QUIET)
        spark.sparkContext.setLogLevel("OFF")
    by_clock = [case for case in cases if _has_clock(case)]
    rest = [case for case in cases if not _has_clock(case)]
    rest.sort(key=lambda case: len(case["inputs"]))  # side by side with those that take as long
    groups = [rest[at : at + _TOGETHER] for at in range(0, len(rest), _TOGETHER)]
    for group in (*groups, *([case] for case in by_clock)):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                draw = random.Random(seed)
                yield from kind(spark, group, Path(folder), draw, partitions).verdicts()
            except Exception:  # noqa: BLE001 they have failed, and say how; the others go on
                error = traceback.format_exc()
                if spark is not None:
                    error = f"{error}\n{_threads(spark)}"
                    for query in spark.streams.active:
                        query.stop()
                yield from (Verdict(case["id"], passed=False, error=error) for case in group)


def _threads(spark: Any) -> str:
    """Say what Spark's threads were doing: where one stands still, this is the only trace."""
    traces = spark._jvm.java.lang.Thread.getAllStackTraces()
    kept = []
    for thread, frames in dict(traces).items():
        if thread.getName().startswith(("Executor task", "stream execution")):
            kept.append("\n  ".join([thread.getName(), *(frame.toString() for frame in frames)]))
    return "\n".join(kept)


QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def busy(error: Exception) -> Literal["stop", "restart"]:
    """Start again when an interpreter took longer to start than the 10 s that Spark allows."""
    return "restart" if "failed to connect back" in str(error) else "stop"


def _has_clock(case: Case) -> bool:
    return any("advance_wall_clock_ms" in entry for entry in case["inputs"])


class _Run:
    def __init__(
        self, spark: Any, cases: list[Case], folder: Path, draw: random.Random, partitions: int
    ) -> None:
        self._spark = spark
        self._partitions = partitions
        self._cases = {f"c{number}-": case for number, case in enumerate(cases)}
        self._folder = folder
        self._draw = draw
        self._clock = folder / "clock"
        self._clock.write_text("0", encoding="utf-8")
        self._address = f"file:{folder / 'topics'}"
        self._read: dict[tuple[str, int], int] = {}
        self._topology = self._built()

    def _built(self) -> Any:
        builder = StreamsBuilder()
        counts: dict[str, int] = {}
        for prefix, case in self._cases.items():
            add_to(builder, case, prefix, Produced(key_serde=TAGGED))
            for node in case["topology"]:
                if "topic" in node:
                    counts[prefix + node["topic"]] = self._count(case)
        topology = builder.build()
        with Log(self._address) as log:
            for group in topology.subtopologies():
                sources = [t for node in group.sources if not node.internal for t in node.topics]
                tables = [getattr(node, "topic", "") for node in group.nodes if group.is_global]
                for topic in (*sources, *tables):
                    log.create_topic(topic, partitions=counts[topic])
        return topology

    def verdicts(self) -> Iterator[Verdict]:
        batches = {prefix: list(self._batches(case)) for prefix, case in self._cases.items()}
        found: dict[str, list[list[Row]]] = {prefix: [] for prefix in self._cases}
        steps: dict[str, list[int]] = {prefix: [] for prefix in self._cases}
        streams = self._start()
        try:
            for turn in range(max(map(len, batches.values()))):
                for prefix, parts in batches.items():
                    if turn < len(parts):
                        self._feed(prefix, self._cases[prefix], parts[turn])
                        steps[prefix].append(parts[turn][-1])
                self._settle(streams)
                for prefix, rows in self._outputs().items():
                    found[prefix] += [rows] if turn < len(batches[prefix]) else []
                if self._draw.random() < 0.25:
                    self._stop(streams)
                    streams = self._start()
        finally:
            self._stop(streams)
        for prefix, case in self._cases.items():
            count, expected = self._count(case), expected_rows(case)
            if count > 1:  # of several tasks it is not known which one's output comes first
                if "partitions" not in case:
                    expected = expected_of_partitions(case, count)
                case = {**case, "order": "multiset_per_step"}  # noqa: PLW2901
            yield judge_batches(case, expected, steps[prefix], found[prefix])

    def _count(self, case: Case) -> int:
        return partitions_of(case, self._partitions)

    def _start(self) -> Any:
        clock = str(self._clock)
        streams = Streams(
            self._topology,
            application_id="conformance",
            log=self._address,
            checkpoint=str(self._folder / "checkpoint"),
            spark=self._spark,
            options=TaskOptions(commit="record", max_ahead="100000 days"),
            key_serde=Serdes.json(),
            value_serde=Serdes.json(),
            clock=lambda _: int(Path(clock).read_text(encoding="utf-8")),
            on_error=busy,
        ).start()
        if any(map(_has_clock, self._cases.values())):
            # before the clock moves, tasks are there, and a batch that was stopped has been run
            # again: what the sink had committed of it is not written by another clock
            streams.process_all_available(_PATIENCE)
            streams.process_batches(1, _PATIENCE)
        return streams

    def _stop(self, streams: Any) -> None:
        if not streams.stop(_PATIENCE):
            raise TimeoutError("the query does not end")

    def _settle(self, streams: Any) -> None:
        """Wait until nothing is left, also in topics between sub-topologies."""
        streams.process_all_available(_PATIENCE)
        if any(map(_has_clock, self._cases.values())):
            streams.process_batches(2, _PATIENCE)

    def _feed(self, prefix: str, case: Case, part: list[int]) -> None:
        with Log(self._address) as log:
            for place in part:
                entry = case["inputs"][place]
                if "advance_wall_clock_ms" in entry:
                    now = int(self._clock.read_text(encoding="utf-8"))
                    moved = self._folder / "moved"
                    moved.write_text(str(now + entry["advance_wall_clock_ms"]), encoding="utf-8")
                    moved.replace(self._clock)  # a task never meets half of it
                    continue
                dumps = Serdes.json().dumps
                record = ProducerRecord(
                    dumps(entry["key"]), dumps(entry["value"]), timestamp=entry["ts"]
                )
                log.append({prefix + entry["topic"]: [record]})

    def _outputs(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {prefix: [] for prefix in self._cases}
        with Log(self._address) as log:
            for prefix, case in self._cases.items():
                for node in case["outputs"]:
                    topic = f"{prefix}out-{node}"
                    for partition, end in log.end_offsets(topic).items():
                        start = self._read.get((topic, partition), 0)
                        self._read[topic, partition] = end
                        for columns in log.read_columns(topic, partition, start, end):
                            for key, value, time in zip(
                                columns.keys, columns.values, columns.timestamps, strict=True
                            ):
                                plain, window = TAGGED.loads(key) or (None, None)
                                window = None if window is None else tuple(window)
                                loaded = Serdes.json().loads(value)
                                rows[prefix].append((0, node, plain, window, loaded, time))
        return rows

    def _batches(self, case: Case) -> Iterator[list[int]]:
        """Cut the inputs so that within a batch a task takes them in their order."""
        one_by_one = _has_clock(case) or _meets_itself(case)
        tables = {node["topic"] for node in case["topology"] if node["op"] == "global_table"}
        part: list[int] = []
        for place in range(len(case["inputs"])):
            full = len(part) >= self._draw.randint(1, _MOST)
            together = [*part, place]
            if part and (one_by_one or full or not self._in_order(case, together, tables)):
                yield part
                part = []
            part = [*part, place]
        if part:
            yield part

    def _in_order(self, case: Case, places: list[int], tables: set[str]) -> bool:
        """Return whether every task takes its part of these inputs in their order."""
        count = self._count(case)
        return all(
            _in_order(case, [place for place in places if place in steps], tables)
            for steps in (steps_of(case, at, count) for at in range(count))
        )


def _meets_itself(case: Case) -> bool:
    """Tell that records take several ways that meet again, where one may overtake another."""
    joins = {"stream_stream_join", "stream_table_join", "table_table_join", "fk_join", "merge"}
    ops = {node["op"] for node in case["topology"]}
    keyed = {"repartition", "map", "flat_map", "select_key", "fk_join"}
    return bool(ops & {*joins, "cogroup"}) and bool(ops & keyed)


def _in_order(case: Case, places: list[int], tables: set[str]) -> bool:
    """Tell that the task takes these inputs in their order."""
    waiting: dict[str, list[tuple[int, int]]] = {}
    for place in places:
        entry = case["inputs"][place]
        waiting.setdefault(entry["topic"], []).append((entry["ts"], place))
    order = []
    for table in tables:
        order += [place for _, place in waiting.pop(table, [])]
    while any(waiting.values()):
        _, topic = min((queue[0][0], topic) for topic, queue in waiting.items() if queue)
        order.append(waiting[topic].pop(0)[1])
    return order == places
