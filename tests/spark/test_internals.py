"""Private Spark APIs work as `thulawa.spark.internals` expects, and are used nowhere else."""

import ast
import inspect
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BufferedReader, BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import thulawa
from thulawa.spark import internals

SOURCES = Path(thulawa.__file__).parent
PRIVATE_MODULES = ("pyspark.sql.pandas", "pyspark.find_spark_home", "py4j", "pyspark.java_gateway")
PRIVATE_TEXTS = ("streaming.sql.batchId", "transform_with_state_driver_worker", "queryExecution")
OWN = {
    "_asdict",
    "_batch",
    "_index",
    "_names",
    "_exit",
    "_fields",
    "_replace",
}  # of our own classes and of the standard library


def test_the_functions_were_written_against_the_installed_version() -> None:
    assert pyspark.__version__ == internals.READ_IN


def private_uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Constant):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if private and of not in ("self", "cls") and node.attr not in OWN:
                yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("pyspark", "py4j")
        ):
            named = [one.name for one in node.names if one.name.startswith("_")]
            if named or (node.module or "").startswith(PRIVATE_MODULES):
                yield f"line {node.lineno}: from {node.module} import {named}"
        elif isinstance(node, ast.Constant) and any(
            text in str(node.value) for text in PRIVATE_TEXTS
        ):
            yield f"line {node.lineno}: {str(node.value)[:60]}"


def modules_with_pyspark() -> Iterator[Path]:
    for path in sorted(SOURCES.rglob("*.py")):
        in_spark = path.is_relative_to(SOURCES / "spark")
        if path.name != "internals.py" and (in_spark or "pyspark" in path.read_text("utf-8")):
            yield path


def test_no_other_module_uses_a_private_api_of_spark() -> None:
    found = {
        f"{path.relative_to(SOURCES)}: {use}"
        for path in modules_with_pyspark()
        for use in private_uses(ast.parse(path.read_text("utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "df._jdf.queryExecution()",
        "from pyspark.accumulators import _accumulatorRegistry",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "name = 'streaming.sql.batchId'",
    ],
)
def test_a_private_use_is_found(line: str) -> None:
    assert [*private_uses(ast.parse(line))]


def test_every_function_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in modules_with_pyspark())
    functions = [
        name
        for name, one in vars(internals).items()
        if inspect.isfunction(one) and one.__module__ == internals.__name__ and name[0] != "_"
    ]
    assert functions
    assert [name for name in functions if name not in text] == []


def test_a_session_shows_its_jvm(spark: SparkSession) -> None:
    assert internals.is_jvm_running()
    assert internals.has_active_context()
    assert not internals.started_by_spark_submit()
    assert Path(internals.spark_home(), "jars").is_dir()


def test_the_options_of_a_builder_are_seen() -> None:
    builder = SparkSession.Builder().config("spark.a", "b")
    assert internals.builder_options(builder)["spark.a"] == "b"


def test_a_cloned_session_has_its_own_settings_and_is_active_where_asked(
    spark: SparkSession,
) -> None:
    own = internals.clone_session(spark)
    own.conf.set("spark.thulawa.test", "own")
    assert spark.conf.get("spark.thulawa.test", None) is None
    assert own.sparkContext is spark.sparkContext
    with internals.active_session(own):
        assert active_setting(spark) == "own"
    assert active_setting(spark) is None


def active_setting(spark: SparkSession) -> str | None:
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    active = sessions.getActiveSession()
    found = active.get().conf().getOption("spark.thulawa.test") if active.isDefined() else None
    return found.get() if found is not None and found.isDefined() else None


def test_a_logger_is_silenced(spark: SparkSession) -> None:
    internals.silence_logger(spark, "thulawa.test")
    manager: Any = spark._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    assert str(manager.getLogger("thulawa.test").getLevel()) == "ERROR"


def test_a_scheduler_pool_is_added_once_with_its_weight(spark: SparkSession) -> None:
    for weight in (3, 5):
        internals.add_scheduler_pool(spark, "internals", weight)
    root = spark.sparkContext._jsc.sc().taskScheduler().rootPool()
    assert root.getSchedulableByName("internals").weight() == 3


def test_files_are_read_through_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("wörter", encoding="utf-8")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").touch()
    assert internals.read_text(spark, str(tmp_path), "metadata") == "wörter"
    assert internals.read_text(spark, str(tmp_path), "none") is None
    assert internals.list_folder(spark, str(tmp_path), "offsets") == ["7"]
    assert internals.list_folder(spark, str(tmp_path), "commits") == []


def test_a_plan_is_walked_from_its_last_node(spark: SparkSession) -> None:
    rows = spark.range(3).where("id > 1").union(spark.range(2))
    names = [node.nodeName() for node in internals.plan_nodes(internals.analyzed_plan(rows))]
    assert names == ["Union", "Filter", "Range", "Range"]
    filtered = internals.plan_nodes(internals.analyzed_plan(rows), until="Filter")
    assert [node.nodeName() for node in filtered] == ["Union", "Range"]
    assert internals.query_execution(rows).sparkPlan().outputPartitioning() is not None
    assert len(internals.plan_children(internals.analyzed_plan(rows))) == 2


def test_the_rows_of_a_local_checkpoint_are_deleted(spark: SparkSession) -> None:
    stored = spark.range(3).localCheckpoint()
    internals.unpersist_local_checkpoint(stored)
    with pytest.raises(Exception, match=r"(?i)checkpoint block"):
        stored.collect()


@pytest.mark.timeout(120)
def test_the_read_limit_of_a_running_query_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        while (progress := internals.last_progress(query)) is None:
            time.sleep(0.05)
        assert {"batchId", "durationMs", "sources"} <= progress.keys()
        assert internals.set_read_limit(spark, query, 7)
        limits: Any = query._jsq.streamingQuery().uniqueSources()
        assert str(limits.values().head()) == "MaxRows: 7"
    finally:
        query.stop()


def test_a_read_limit_that_cannot_be_replaced_is_reported(spark: SparkSession) -> None:
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=spark.sparkContext._jsc.sc))
    assert not internals.set_read_limit(spark, query, 7)


def test_types_pass_between_arrow_and_spark() -> None:
    schema = t.StructType([t.StructField("at", t.TimestampType())])
    arrow = internals.arrow_schema(schema, "UTC")
    assert arrow.field("at").type == pa.timestamp("us", "UTC")
    assert internals.spark_schema(arrow) == schema
    assert internals.spark_type(pa.int32()) == t.IntegerType()


def test_the_accumulators_of_a_task_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Accumulator(4711, 0, AddingAccumulatorParam(0))
    monkeypatch.setattr("pyspark.accumulators._accumulatorRegistry", {4711: one})
    assert internals.task_accumulators() == [(4711, one)]


@pytest.fixture
def seen_in_worker() -> Any:
    """Return a function for ``mapInArrow`` that shows what a worker sees of its task."""

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = pyspark.TaskContext.get()
        stream, batch = internals.worker_input(), internals.streaming_batch(context)
        for _ in batches:
            pass
        ended = stream is not None and bool(stream.peek(1))
        yield pa.record_batch({"seen": [f"{ended} {batch} {internals.is_schema_process()}"]})

    return seen


def test_a_worker_shows_the_end_of_its_input(spark: SparkSession, seen_in_worker: Any) -> None:
    rows = spark.range(0, 1, 1, 1).selectExpr("cast(id as string) seen")
    told = [row.seen for row in rows.mapInArrow(seen_in_worker, "seen string").collect()]
    assert told == ["True None False"]


def test_a_task_of_a_streaming_query_shows_its_batch(
    spark: SparkSession, tmp_path: Path, seen_in_worker: Any
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    told = rows.selectExpr("cast(value as string) seen").mapInArrow(seen_in_worker, "seen string")
    writer = told.writeStream.format("json")
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{tmp_path}/out")
    query.awaitTermination()
    seen = {row.seen for row in spark.read.json(f"{tmp_path}/out").collect()}
    assert f"True ('{query.id}', 0) False" in seen


def test_a_process_without_a_worker_has_no_input() -> None:
    assert internals.worker_input() is None

    def main() -> Any:
        infile = BufferedReader(BytesIO(b"rows"))
        return infile, internals.worker_input()

    given, found = main()
    assert found is given


def test_the_process_that_is_asked_for_a_schema_is_known(tmp_path: Path) -> None:
    assert not internals.is_schema_process()
    spec = "pyspark.sql.streaming.transform_with_state_driver_worker"
    __import__(spec)  # it still exists
    program = (
        "import sys; from types import SimpleNamespace as S; from thulawa.spark import internals;"
        f"sys.modules['__main__'].__spec__ = S(name={spec!r}); print(internals.is_schema_process())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"True\n"


@pytest.mark.timeout(180)
def test_a_jvm_is_ended(tmp_path: Path) -> None:
    program = """
from pyspark.sql import SparkSession
from thulawa.spark import internals
made = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
process = made.sparkContext._gateway.proc
internals.end_jvm(made, 60)
print("ended", process.poll())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=tmp_path
    )
    assert run.stdout.startswith(b"ended")
    assert b"None" not in run.stdout
