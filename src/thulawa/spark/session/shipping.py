"""Send the library to the workers of a cluster, where it need not be installed.

Workers on other machines need this library's third-party packages, not the library: they get the
driver's copy, so that both always have the same version.
"""

import atexit
import shutil
import tempfile
from pathlib import Path
from weakref import WeakSet
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark import SparkContext
from pyspark.sql import SparkSession

_shipped: WeakSet[SparkContext] = WeakSet()


def ship(spark: SparkSession) -> None:
    """Send the library to the workers of a session, once for each context.

    Do nothing for a local master, whose workers see the driver's files, nor if the driver itself
    runs from an archive that was passed with ``--py-files``.
    """
    context = spark.sparkContext
    package = Path(__file__).parents[2]
    if context in _shipped or is_local(context.master) or not package.is_dir():
        return
    context.addPyFile(str(_archive(package)))
    _shipped.add(context)


def is_local(master: str | None) -> bool:
    """Return whether the workers of a master run on the driver's machine and see its files."""
    return master is None or master == "local" or master.startswith("local[")


def _archive(package: Path) -> Path:
    """Create an archive of the package, which exists until the driver ends."""
    folder = Path(tempfile.mkdtemp(prefix="thulawa-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"{package.name}.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                file.write(path, path.relative_to(package.parent))
    return archive
