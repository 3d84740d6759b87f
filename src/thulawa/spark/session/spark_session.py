"""Create Spark sessions with the settings that Thulawa needs; the user's take precedence."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from thulawa.spark.connectors.log_sink import register
from thulawa.spark.internals import (
    builder_options,
    connect_to_jvm,
    is_jvm_running,
    spark_home,
    started_by_spark_submit,
)
from thulawa.spark.session import jvm_archive
from thulawa.spark.session.shipping import is_local, ship

_IN_FILE = re.compile(r"^\s*(spark\.[^\s=:]+)", re.MULTILINE)
_IN_ARGUMENTS = re.compile(r"--conf[\s=]+[\"']?(spark\.[^\s=]+)=")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def configure(builder: Any) -> Any:
    """Set the settings that Thulawa needs on a session builder, and return it.

    Settings of the builder, of ``spark-submit``, of ``spark-defaults.conf`` and of
    ``PYSPARK_SUBMIT_ARGS`` are not changed.

    Python workers run this interpreter and start faster on this machine; rows are passed as Arrow;
    state is in RocksDB; no task runs twice concurrently, and tasks of streaming queries are not
    coalesced; tracebacks are complete; the JVM starts faster if there is a class archive
    (`thulawa.spark.session.jvm_archive`).

    .. versionadded:: 0.1.0
    """
    defaults = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.speculation": "false",
        # a rerun must have the same rows in each task, by which sinks identify them
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # applications on one session share its cores
        # else frames of the user's functions, called by the engine, are left out
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    if java := jvm_archive.options():
        defaults["spark.driver.extraJavaOptions"] = java
    options = builder_options(builder)
    chosen = {*options, *_set_elsewhere()}
    master = options.get("spark.master")
    _choose_worker_python(local=is_local(master) if master else "spark.master" not in chosen)
    for name, value in defaults.items():
        if name not in chosen:
            builder = builder.config(name, value)
    return builder


def _set_elsewhere() -> set[str]:
    """Return the names of settings that are set outside of the builder."""
    if is_jvm_running() or started_by_spark_submit():
        # Spark is running already and can be asked
        connect_to_jvm()
        return {setting for setting, _ in SparkConf().getAll()}
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    named: set[str] = set()
    if "--master" in arguments or "MASTER" in os.environ:
        named.add("spark.master")
    return {*_IN_FILE.findall(_defaults_file()), *_IN_ARGUMENTS.findall(arguments), *named}


def _defaults_file() -> str:
    folder = os.environ.get("SPARK_CONF_DIR") or f"{spark_home()}/conf"
    file = Path(folder, "spark-defaults.conf")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _choose_worker_python(*, local: bool) -> None:
    """Set ``PYSPARK_PYTHON`` to this interpreter, unless it names another.

    A context of this process reads the workers' interpreter from there and nowhere else. Spark puts
    two archives of PySpark's sources and one of its jars first on the module path of workers.
    Python does not cache bytecode of archives, so each process compiles PySpark again: two thirds
    of its start time, and a query on the embedded log starts eight processes. If PySpark is
    installed as a package, the script ``worker-python`` removes the archives from the path and adds
    the folder of the driver's program. A cluster may not have the script, so only workers on the
    driver's machine use it.
    """
    ours = str(Path(__file__).with_name("worker-python"))
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen not in (None, ours):
        return
    # a JVM that is running does not see variables that are set now
    visible = not is_jvm_running() or chosen == ours
    if local and visible and os.access(ours, os.X_OK) and _is_package():
        os.environ["THULAWA_PYTHON"] = sys.executable
        os.environ["THULAWA_SPARK"] = spark_home()
        os.environ["THULAWA_PROGRAM"] = _program_folder()
        os.environ["PYSPARK_PYTHON"] = ours
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_package() -> bool:
    """Return whether PySpark is an installed package that includes its Spark."""
    folder = Path(pyspark.__file__).parent
    return folder.is_dir() and folder.samefile(spark_home())


def _program_folder() -> str:
    """Return the folder of the program; empty if it was not a file."""
    place = sys.path[0] if sys.path else ""
    return os.path.abspath(place) if place and Path(place).is_dir() else ""  # noqa: PTH100 as it is


def session(
    name: str = "thulawa",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session; create it with `configure` if there is none.

    The embedded log is registered as the format ``thulawa``. On a cluster the library is sent to
    the workers, which only need its third-party packages.

    ``settings`` are Spark settings: ``session(settings={"spark.ui.enabled": "false"})``.

    .. versionadded:: 0.1.0
    """
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    spark: SparkSession = configure(builder).getOrCreate()
    register(spark)
    ship(spark)
    return spark
