"""A class archive of Spark, with which the JVM starts faster.

At each start the JVM reads, verifies and links the classes that Spark loads for a first query.
``python -m thulawa.spark.session.jvm_archive`` makes it write them once (class data sharing), into
a file of some 160 MB in the virtual environment; sessions use it by `options`. The JVM ignores an
archive of another Java version or of other jars.
"""

import os
import shutil
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

_NO_LOG = "-Xlog:cds*=off"
_SECONDS_TO_WRITE = 120


def options() -> str:
    """Return the JVM options that use the archive; empty if there is none."""
    file = _archive_path()
    return f"-XX:SharedArchiveFile={file} {_NO_LOG}" if file is not None and file.exists() else ""


def make() -> Path | None:
    """Create the archive unless it exists, and return it; None if there is no Java."""
    file = _archive_path()
    if file is None or file.exists():
        return file
    shutil.rmtree(file.parent, ignore_errors=True)  # of another version
    file.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        written = Path(folder, file.name)
        _run_queries(Path(folder), f"-XX:ArchiveClassesAtExit={written} {_NO_LOG}")
        written.rename(file)
    return file


def _archive_path() -> Path | None:
    """Return the path of the archive for this Java and this Spark."""
    import pyspark  # noqa: PLC0415 a caller of options() has loaded it

    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    real = Path(java).resolve()
    of = f"{real} {real.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    return Path(sys.prefix, "thulawa", f"spark-{sha256(of.encode()).hexdigest()[:16]}.jsa")


def _run_queries(folder: Path, java_options: str) -> None:
    """Start Spark, run typical first queries, and end the JVM, which writes the archive."""
    from thulawa.brokers.embedded import Log, ProducerRecord  # noqa: PLC0415 see above
    from thulawa.spark.connectors.log_sink import log_sink  # noqa: PLC0415
    from thulawa.spark.internals import end_jvm  # noqa: PLC0415
    from thulawa.spark.map_by_key.api import map_by_key  # noqa: PLC0415
    from thulawa.spark.session.spark_session import session  # noqa: PLC0415

    settings = {
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{folder}/spark",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = session("thulawa-jvm-archive", master="local[2]", settings=settings)
    log = f"file:{folder}/topics"
    with Log(log) as topics:
        topics.create_topic("in")
        topics.create_topic("out")
        topics.append({"in": [ProducerRecord(b"k", b"v")]})
    spark.range(10).groupBy("id").count().collect()
    rows = spark.readStream.format("thulawa").option("subscribe", "in").load(log)
    mapped = rows.transform(map_by_key(_same, key="key", returns="said binary", keep=["key"]))
    named = mapped.withColumnRenamed("said", "value")
    writer = log_sink(named, log, topic="out").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    end_jvm(spark, _SECONDS_TO_WRITE)  # the JVM writes the archive when it exits


async def _same(row: Any) -> Any:
    return row.value


if __name__ == "__main__":
    sys.exit(0 if make() else 1)
