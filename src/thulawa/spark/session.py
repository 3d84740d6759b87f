"""A Spark session that is fit for Thulawa: set what is needed, leave alone what was chosen."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from thulawa.kafka.maven import fetched
from thulawa.spark.log_format import register
from thulawa.spark.shipping import ship

__all__ = ["configure", "session"]

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def configure(builder: Any) -> Any:
    """Set on a session builder what Thulawa needs and the user has not set.

    Python workers run this interpreter; rows travel as Arrow; state lives in RocksDB; no task
    runs twice at a time; tracebacks are whole. Spark's Kafka connector is there when it was
    fetched before (``thulawa kafka jars``); else `thulawa.spark.kafka_source` fetches and adds it.

    .. versionadded:: 0.1.0
    """
    defaults = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.speculation": "false",
        # the frames it leaves out are the user's own, called from the engine
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    if connector := fetched("connector"):
        defaults["spark.jars"] = ",".join(map(str, connector))
    # a context made in this process looks here for the workers' interpreter, and nowhere else
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = builder._options  # noqa: SLF001 the only way to see what was set
    for name, value in defaults.items():
        if name not in chosen:
            builder = builder.config(name, value)
    return builder


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
