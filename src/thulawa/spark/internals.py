"""Every use of private Spark and PySpark APIs, each as one named function.

Spark has no public API for what these functions do. All were written against Spark `READ_IN`;
``tests/spark/test_internals.py`` fails when one of them no longer works, and when another module
uses a private API. Each docstring names what the function depends on.

Modules of ``pyspark.sql`` are imported inside the functions, because Python workers import this
module and need few of them.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedRWPair
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext, accumulators

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType, StructType

READ_IN = "4.2.0"
"""The version of Spark that these functions were written against."""

_SCHEMA_PROCESS = "pyspark.sql.streaming.transform_with_state_driver_worker"
_PYTHON_READ_LIMIT = "PythonStreamingSourceReadLimit"


# --- the JVM and its launcher


def spark_home() -> str:
    """Return the folder of the Spark installation (`pyspark.find_spark_home`)."""
    from pyspark.find_spark_home import _find_spark_home

    return _find_spark_home()


def is_jvm_running() -> bool:
    """Return whether this process has started a JVM (``SparkContext._gateway``)."""
    return SparkContext._gateway is not None


def connect_to_jvm() -> None:
    """Connect to the JVM that ``spark-submit`` started (``SparkContext._ensure_initialized``)."""
    SparkContext._ensure_initialized()


def started_by_spark_submit() -> bool:
    """Return whether ``spark-submit`` started this process, which then has a JVM to connect to."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def end_jvm(spark: "SparkSession", timeout: float) -> None:
    """Stop a session and its JVM, and wait until the JVM process has exited.

    The JVM exits when its standard input is closed (``SparkContext._gateway.proc``).
    """
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout)


def has_active_context() -> bool:
    """Return whether a context is active (``SparkContext._active_spark_context``)."""
    return SparkContext._active_spark_context is not None


# --- sessions


def builder_options(builder: Any) -> Mapping[str, str]:
    """Return the options that were set on a session builder (``SparkSession.Builder._options``)."""
    options: Mapping[str, str] = builder._options
    return options


@contextmanager
def active_session(spark: "SparkSession") -> Iterator[None]:
    """Make a session the active one of this thread, where Spark looks up Python data sources."""
    sessions = _jvm(spark).org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def clone_session(spark: "SparkSession") -> "SparkSession":
    """Return a session with its own settings and the formats that ``spark`` has registered."""
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def silence_logger(spark: "SparkSession", logger: str) -> None:
    """Set the level of a Log4j logger of the JVM to ERROR."""
    log4j = _jvm(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)


def add_scheduler_pool(spark: "SparkSession", name: str, weight: int) -> None:
    """Add a FIFO pool with a weight to the fair scheduler, unless a pool of this name exists."""
    root = spark.sparkContext._jsc.sc().taskScheduler().rootPool()
    if root.getSchedulableByName(name) is None:
        scheduler = _jvm(spark).org.apache.spark.scheduler
        fifo = scheduler.SchedulingMode.FIFO()
        root.addSchedulable(scheduler.Pool(name, fifo, 0, weight))


def _jvm(spark: "SparkSession") -> Any:
    return spark._jvm


# --- files on the file systems that Spark is configured for (Hadoop's)


def read_text(spark: "SparkSession", folder: str, name: str) -> str | None:
    """Return the text of a file; None if it does not exist."""
    files, path = _hadoop_path(spark, folder, name)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def list_folder(spark: "SparkSession", folder: str, name: str) -> list[str]:
    """Return the names of the files in a folder; none if it does not exist."""
    files, path = _hadoop_path(spark, folder, name)
    listed = files.listStatus(path) if files.exists(path) else ()
    return [str(status.getPath().getName()) for status in listed]


def _hadoop_path(spark: "SparkSession", folder: str, name: str) -> tuple[Any, Any]:
    path = _jvm(spark).org.apache.hadoop.fs.Path(folder, name)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


# --- query plans: objects of Catalyst, seen through Py4J


def query_execution(df: "DataFrame") -> Any:
    """Return the ``QueryExecution`` of a DataFrame."""
    return df._jdf.queryExecution()


def analyzed_plan(df: "DataFrame") -> Any:
    """Return the last node of a DataFrame's analyzed logical plan."""
    return query_execution(df).analyzed()


def plan_children(node: Any) -> list[Any]:
    """Return the inputs of a plan node."""
    return scala_items(node.children())


def plan_nodes(plan: Any, until: str = "") -> Iterator[Any]:
    """Yield the nodes of a plan from the last one on, down to nodes that are named ``until``."""
    if plan.nodeName() != until:
        yield plan
        for child in plan_children(plan):
            yield from plan_nodes(child, until)


def scala_items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def unpersist_local_checkpoint(df: "DataFrame") -> None:
    """Delete the rows that ``DataFrame.localCheckpoint`` stored on the executors."""
    analyzed_plan(df).rdd().unpersist(False)  # noqa: FBT003 Py4J has no keyword arguments


# --- streaming queries


def set_read_limit(spark: "SparkSession", query: "StreamingQuery", records: int) -> bool:
    """Limit the next micro-batches of a running query; return False if Spark does not allow it.

    Spark asks each source for its read limit when a query starts, and stores it in
    ``uniqueSources`` of the execution; this replaces the stored limits.
    """
    from py4j.protocol import Py4JError

    with suppress(Py4JError, TypeError):  # Py4J raises either where a name does not exist
        execution = query._jsq.streamingQuery()
        limits = execution.uniqueSources()
        sources = limits.keysIterator()
        while sources.hasNext():
            source = sources.next()
            limits = limits.updated(source, _read_limit(spark, limits.apply(source), records))
        getattr(execution, "uniqueSources_$eq")(limits)
        return True
    return False


def _read_limit(spark: "SparkSession", before: Any, records: int) -> Any:
    """Return a limit of the class that the source understands: Python sources have their own."""
    if before.getClass().getSimpleName() == _PYTHON_READ_LIMIT:
        return before.copy(json.dumps({"max_rows": records, "_type": "ReadMaxRows"}))
    return _jvm(spark).org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(records)


def last_progress(query: "StreamingQuery") -> dict[str, Any] | None:
    """Return a query's last progress as Spark's JSON has it; None before the first micro-batch.

    ``StreamingQuery.lastProgress`` would build Python objects of all its parts.
    """
    progress: Any = query._jsq.lastProgress()
    found: dict[str, Any] | None = None if progress is None else json.loads(progress.json())
    return found


# --- types between Arrow and Spark (`pyspark.sql.pandas.types`)


def arrow_schema(schema: "StructType", timezone: str | None) -> pa.Schema:
    """Return the Arrow schema of a Spark schema; raise `PySparkTypeError` if it has none."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone=timezone)


def spark_schema(schema: pa.Schema) -> "StructType":
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def spark_type(kind: pa.DataType) -> "DataType":
    """Return the Spark type of an Arrow type."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind)


# --- inside Python workers


def task_accumulators() -> list[tuple[int, "Accumulator[Any]"]]:
    """Return the accumulators of the current task by id (``_accumulatorRegistry``)."""
    return list(accumulators._accumulatorRegistry.items())


def streaming_batch(context: TaskContext) -> tuple[str, int] | None:
    """Return the query id and the micro-batch number of a task; None outside a streaming query.

    Spark passes both to its tasks as local properties.
    """
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return None if query is None or batch is None else (query, int(batch))


def worker_input() -> BufferedReader | BufferedRWPair | None:
    """Return the stream that this worker reads its rows from; None if it cannot be found.

    It is the local variable ``infile`` of ``pyspark.worker.main``. After the last row of a task
    that has not failed, Spark sends an end-of-stream marker there.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if isinstance(found, BufferedReader | BufferedRWPair):
            return found
        frame = frame.f_back
    return None


def is_schema_process() -> bool:
    """Return whether this process only answers Spark's question for a state schema.

    Spark starts one per ``transformWithState`` operator; it prints its steps to standard output.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _SCHEMA_PROCESS
