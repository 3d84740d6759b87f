"""Sessions of Spark that print nothing but what goes wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

import thulawa

__all__ = ["QUIET", "quiet_session"]

QUIET = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def quiet_session(name: str, settings: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a session on two cores, and stop it."""
    spark = thulawa.session(name, master="local[2]", settings=QUIET | (settings or {}))
    try:
        yield spark
    finally:
        spark.stop()
