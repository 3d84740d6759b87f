"""Send the library along to the workers of a cluster, where it need not be installed.

Workers on other machines need this library's third-party packages, not the library: they get
what the driver runs, so that both are always of one version.
"""

import atexit
import shutil
import tempfile
from pathlib import Path
from weakref import WeakSet
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["is_local", "ship"]

_shipped: WeakSet[SparkContext] = WeakSet()


def ship(spark: SparkSession) -> None:
    """Let the workers of a session import this library; once for each context.

    Nothing is to be done for a local master, whose workers see the driver's files, nor where
    the driver itself runs from an archive, which it was given with ``--py-files``.
    """
    context = spark.sparkContext
    package = Path(__file__).parents[2]
    if context in _shipped or is_local(context.master) or not package.is_dir():
        return
    context.addPyFile(str(_archive(package)))
    _shipped.add(context)


def is_local(master: str | None) -> bool:
    """Tell whether the workers of a master are on the driver's machine and see its files."""
    return master is None or master == "local" or master.startswith("local[")


def _archive(package: Path) -> Path:
    """Pack the package; the archive is there until the driver ends: workers fetch it from there."""
    folder = Path(tempfile.mkdtemp(prefix="thulawa-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"{package.name}.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                file.write(path, path.relative_to(package.parent))
    return archive
