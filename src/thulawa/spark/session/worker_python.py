"""Which Python the workers run, and how it is started.

Spark puts two archives of PySpark's sources and one of its jars before all other places in which
a worker looks for modules. Python keeps nothing that it has compiled from an archive, so each
process compiles PySpark anew: two thirds of its start, and a query on the embedded log starts
eight of them. Where PySpark is installed as a package, as it is where the driver found it, a
script of a few lines takes the archives off the path. It adds the folder of the driver's program,
whose modules the driver can import. It is for workers on the driver's own machine; those of a
cluster may not have it.
"""

import os
import sys
from pathlib import Path

import pyspark

from thulawa.spark.internals import is_jvm_running, spark_home

__all__ = ["choose_worker_python"]

_SCRIPT = Path(__file__).with_name("worker-python")


def choose_worker_python(*, local: bool) -> None:
    """Have the workers run this interpreter, unless ``PYSPARK_PYTHON`` names another.

    A context made in this process looks there for the workers' interpreter, and nowhere else.
    """
    ours = str(_SCRIPT)
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen not in (None, ours):
        return
    # a JVM that was started before has none of what is set now
    heard = not is_jvm_running() or chosen == ours
    if local and heard and os.access(ours, os.X_OK) and _is_package():
        os.environ["THULAWA_PYTHON"] = sys.executable
        os.environ["THULAWA_SPARK"] = spark_home()
        os.environ["THULAWA_PROGRAM"] = _program_folder()
        os.environ["PYSPARK_PYTHON"] = ours
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_package() -> bool:
    """Tell whether PySpark is files in a folder, which holds its Spark too: of one version."""
    folder = Path(pyspark.__file__).parent
    return folder.is_dir() and folder.samefile(spark_home())


def _program_folder() -> str:
    """Give where Python found the program; empty: it was not a file."""
    place = sys.path[0] if sys.path else ""
    return os.path.abspath(place) if place and Path(place).is_dir() else ""  # noqa: PTH100 as it is
