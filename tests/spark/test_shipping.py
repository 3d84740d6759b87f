"""Workers of a cluster run the driver's own library, which is not installed there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import thulawa

# The driver alone is told where the library is: workers inherit the environment, not sys.path.
PROGRAM = """
import json, sys

sys.path.insert(0, sys.argv[1])
import thulawa


async def where(row):
    return row.id * 2, thulawa.__file__


spark = thulawa.session(
    master="local-cluster[2,1,1024]",
    settings={
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "512m",
    },
)
numbers = spark.range(0, 200, 1, 2).selectExpr("id", "id % 10 as key")
mapping = thulawa.map_by_key(
    where, key="key", returns="twice long, file string", repartition=True, order_by="id"
)
rows = numbers.transform(mapping).collect()
log = thulawa.Log(f"file:{sys.argv[2]}")
log.create_topic("out")
kept = spark.range(0, 5, 1, 1).selectExpr("cast(id as string) as value")
kept.write.format("thulawa").mode("append").option("topic", "out").save(log.address)
print(json.dumps({
    "driver": thulawa.__file__,
    "workers": sorted({row.file for row in rows}),
    "rows": sorted(row.twice for row in rows),
    "written": sum(log.end_offsets("out").values()),
}))
"""


@pytest.mark.timeout(240)  # a cluster has to start
def test_the_library_travels_to_the_workers_of_a_cluster(tmp_path: Path) -> None:
    copy = tmp_path / "library"
    shutil.copytree(Path(thulawa.__file__).parent, copy / "thulawa")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, str(copy), str(tmp_path / "topics")]
    done = subprocess.run(
        command,
        cwd=tmp_path,  # the cluster's workers keep their files in work/ here
        env=environment | {"SPARK_WORKER_DIR": str(tmp_path / "work")},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["driver"] == str(copy / "thulawa" / "__init__.py")
    assert {Path(file).parts[-3:] for file in said["workers"]} == {
        ("thulawa.zip", "thulawa", "__init__.py")
    }
    assert said["rows"] == [2 * number for number in range(200)]
    assert said["written"] == 5
