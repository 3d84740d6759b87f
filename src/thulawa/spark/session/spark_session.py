"""Create Spark sessions with the settings that Thulawa needs; the user's take precedence."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from thulawa.spark.session.worker_python import choose_worker_python

__all__ = ["configure", "session"]

_IN_FILE = re.compile(r"^\s*(spark\.[^\s=:]+)", re.MULTILINE)
_IN_ARGUMENTS = re.compile(r"--conf[\s=]+[\"']?(spark\.[^\s=]+)=")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def configure(builder: Any) -> Any:
    """Set the settings that Thulawa needs on a session builder, and return it.

    Settings of the builder, of ``spark-submit``, of ``spark-defaults.conf`` and of
    ``PYSPARK_SUBMIT_ARGS`` are not changed.

    Python workers run this interpreter and start faster on this machine (`worker_python`); rows are
    passed as Arrow; state is in RocksDB; no task runs twice concurrently, and tasks of streaming
    queries are not coalesced; tracebacks are complete; the JVM starts faster if there is a class
    archive (`thulawa.spark.session.jvm_archive`).

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
    choose_worker_python(local=is_local(master) if master else "spark.master" not in chosen)
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
