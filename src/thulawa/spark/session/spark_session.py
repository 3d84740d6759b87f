"""A Spark session that is fit for Thulawa: set what is needed, leave alone what was chosen."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

from thulawa.spark.connectors.log_format import register
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
    """Set on a session builder what Thulawa needs and nobody has set.

    What the builder has stays, and so does what reaches Spark by ``spark-submit``, by
    ``spark-defaults.conf`` or by ``PYSPARK_SUBMIT_ARGS``.

    Python workers run this interpreter, and on this machine they start sooner
    (`worker_python`); rows travel as Arrow; state lives in RocksDB; no task runs
    twice at a time, and none of a streaming query is joined with others; tracebacks are whole; the
    JVM starts sooner where its classes were made ready (`thulawa.spark.session.jvm_archive`).

    .. versionadded:: 0.1.0
    """
    defaults = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.speculation": "false",
        # a batch that is run again has the same rows in each task, by which sinks know them
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # applications on one session share its cores
        # the frames it leaves out are the user's own, called from the engine
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
    """Name the settings that Spark has without the builder, which would override them."""
    if is_jvm_running() or started_by_spark_submit():
        # Spark runs already, by spark-submit or from before: it can be asked
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
    """Give a Spark session, made with `configure` if there is none yet.

    It knows the embedded log as the format ``thulawa``, and on a cluster it sends this library
    to the workers, which need its third-party packages alone.

    ``settings`` are Spark's own: ``session(settings={"spark.ui.enabled": "false"})``.

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
