"""The workers of a local session run this interpreter, and none of Spark's archives."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from thulawa.spark.session.spark_session import configure

SCRIPT = str(Path(__file__).parents[3] / "src/thulawa/spark/session/worker-python")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let it look as if nobody had chosen anything, and Spark had not been started."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in ("MASTER", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def worker_python(builder: SparkSession.Builder) -> str:
    configure(builder)
    return os.environ["PYSPARK_PYTHON"]


def test_workers_find_pyspark_where_the_driver_does(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            places = [pyspark.__file__, sys.executable, *sys.path]
            yield pa.RecordBatch.from_pydict({"place": places})

    rows = spark.range(1).repartition(1).mapInArrow(where, "place string").collect()
    found, executable, *path = (row.place for row in rows)
    assert (found, executable) == (pyspark.__file__, sys.executable)
    assert [place for place in path if place.startswith(str(Path(pyspark.__file__).parent))] == []


PROGRAM = """
import helper, thulawa

spark = thulawa.session(settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
double = thulawa.map_by_key(helper.double, key="id", returns="n long")
print(sorted(row.n for row in spark.range(3).coalesce(1).transform(double).collect()))
"""
HELPER = """
async def double(row):
    return 2 * row.id
"""


def test_workers_find_modules_beside_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "the code"
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM)
    (folder / "helper.py").write_text(HELPER)
    command = [sys.executable, str(folder / "main.py")]
    environment = {name: v for name, v in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("[0, 2, 4]\n"), done.stderr[-2000:]


def test_the_script_leaves_all_other_places(tmp_path: Path) -> None:
    spark = tmp_path / "a spark"
    places = ["/x/y.zip", f"{spark}/python/lib/py.zip", "/a b", f"{spark}/jars/c.jar", "/x/c.jar"]
    environment = {
        "PYTHONPATH": ":".join([f"{spark}/python/lib/py.zip", *places]),
        "THULAWA_PYTHON": sys.executable,
        "THULAWA_SPARK": str(spark),
    }
    command = [
        SCRIPT,
        "-c",
        "import os, sys; print(os.environ['PYTHONPATH'], sys.argv)",
        "d e",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "/x/y.zip:/a b:/x/c.jar ['-c', 'd e']\n"


@pytest.mark.parametrize("master", [None, "local", "local[2]"])
def test_workers_on_this_machine_are_started_by_the_script(
    fresh: pytest.MonkeyPatch, master: str | None
) -> None:
    builder = SparkSession.Builder()
    assert worker_python(builder.master(master) if master else builder) == SCRIPT
    # one for a cluster, later and in the same process
    assert worker_python(SparkSession.Builder().master("spark://a:7077")) == sys.executable


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://a:7077", "yarn"])
def test_workers_that_may_not_have_the_script_run_the_interpreter(
    fresh: pytest.MonkeyPatch, master: str
) -> None:
    assert worker_python(SparkSession.Builder().master(master)) == sys.executable


@pytest.mark.parametrize(
    ("name", "value"), [("MASTER", "yarn"), ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")]
)
def test_a_master_named_elsewhere_counts(fresh: pytest.MonkeyPatch, name: str, value: str) -> None:
    fresh.setenv(name, value)
    assert worker_python(SparkSession.Builder()) == sys.executable


def test_who_has_chosen_a_python_keeps_it(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv("PYSPARK_PYTHON", "/opt/python")
    assert worker_python(SparkSession.Builder().master("local")) == "/opt/python"


def test_another_spark_than_the_packages_own_keeps_its_archives(
    fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python(SparkSession.Builder().master("local")) == sys.executable
