"""Check that driver and executors of a cluster share the checkpoint folder.

Executors write state into the checkpoint, and the driver writes the offsets that belong to it.
Without a shared disk each host would write to its own, and nothing would fail until a task moves to
another host and finds no state there.
"""

import shutil
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from thulawa.errors import ConfigurationError
from thulawa.spark.session.shipping import is_local, ship

_TASK_SECONDS = 0.1  # long enough that no executor runs the tasks of all


class _View(NamedTuple):
    """The result of one task: its host, the problem there, and the file it has written."""

    host: str
    problem: str
    answer: str


def check_shared(spark: SparkSession, folder: Path) -> None:
    """Raise `ConfigurationError` unless executors read and write the folder of the driver.

    Runs as many small tasks as there are cores; does nothing on a local master.
    """
    if is_local(spark.sparkContext.master):
        return
    ship(spark)
    probe = folder / f"probe-{uuid4().hex}"
    probe.mkdir(parents=True)
    (probe / "driver").touch()
    try:
        tasks = max(2, spark.sparkContext.defaultParallelism)
        looked = spark.sparkContext.parallelize(range(tasks), tasks)
        views = looked.mapPartitions(partial(_probe, str(probe))).collect()
        for view in views:
            problem = view.problem
            if not problem and not (probe / view.answer).exists():
                problem = "does not write where the driver reads"
            if problem:
                raise _error(folder, view.host, problem)
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _probe(probe: str, numbers: Iterator[int]) -> Iterator[_View]:
    host, answer = socket.gethostname(), uuid4().hex
    time.sleep(_TASK_SECONDS)
    for _ in numbers:
        if not Path(probe, "driver").exists():
            yield _View(host, "does not see what the driver writes there", "")
            continue
        try:
            Path(probe, answer).touch()
        except OSError as error:
            yield _View(host, f"cannot write there ({error.strerror})", "")
        else:
            yield _View(host, "", answer)


def _error(folder: Path, host: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint {folder} is not one folder for the driver on {socket.gethostname()} and "
        f"its executors: one on {host} {problem}.\n"
        "Set checkpoint= to a folder that is mounted on all hosts and writable for all"
    )
