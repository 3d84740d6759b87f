"""Choose the Python interpreter of workers, and make it start faster.

Spark puts two archives of PySpark's sources and one of its jars first on the module path of
workers. Python does not cache bytecode of archives, so each process compiles PySpark again: two
thirds of its start time, and a query on the embedded log starts eight processes. If PySpark is
installed as a package, a short script removes the archives from the path and adds the folder of the
driver's program. It is only used for workers on the driver's machine; a cluster may not have it.
"""

import os
import sys
from pathlib import Path

import pyspark

from thulawa.spark.internals import is_jvm_running, spark_home

_SCRIPT = Path(__file__).with_name("worker-python")


def choose_worker_python(*, local: bool) -> None:
    """Set ``PYSPARK_PYTHON`` to this interpreter, unless it names another.

    A context of this process reads the workers' interpreter from there and nowhere else.
    """
    ours = str(_SCRIPT)
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
