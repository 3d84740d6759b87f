"""Workers of a cluster run the driver's own library, which is not installed there."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pyspark
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
    master=sys.argv[3],
    settings={
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.executor.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    },
)
numbers = spark.range(0, 200, 1, 2).selectExpr("id", "id % 10 as key")
mapping = thulawa.map_by_key(
    where, key="key", returns="twice long, file string", repartition=True, order_by="id"
)
rows = numbers.transform(mapping).collect()
log = thulawa.embedded.Log(f"file:{sys.argv[2]}")
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


SPARK = Path(pyspark.__file__).parent
# what a machine of a cluster has: nothing that leads to this library
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def daemon(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Spark's own daemons, and all that it starts, while the context lasts."""
    environment = BARE | {"SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *arguments],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until something listens there."""
    for _ in range(600):
        assert process.poll() is None, "the master has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens at port {port}")


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a master and a worker of Spark's own cluster; give its address."""
    folder.mkdir()
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    master = ("org.apache.spark.deploy.master.Master", *here, "--port", str(port))
    worker = (
        "org.apache.spark.deploy.worker.Worker", *here, "--cores", "2", "--memory", "1g",
        "--work-dir", str(folder / "work"), address,
    )  # fmt: skip
    with daemon(*master, log=folder / "master.log") as process:
        wait_for(port, process)
        with daemon(*worker, log=folder / "worker.log"):
            yield address


@contextmanager
def local_cluster(folder: Path) -> Iterator[str]:
    """Give the address of a cluster that the driver starts by itself."""
    folder.mkdir()
    yield "local-cluster[2,1,1024]"


@pytest.mark.timeout(240)  # a cluster has to start
@pytest.mark.parametrize("cluster", [local_cluster, standalone])
def test_the_library_travels_to_the_workers_of_a_cluster(
    tmp_path: Path, cluster: Callable[[Path], AbstractContextManager[str]]
) -> None:
    copy = tmp_path / "library"
    shutil.copytree(Path(thulawa.__file__).parent, copy / "thulawa")
    with cluster(tmp_path / "cluster") as master:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(copy), str(tmp_path / "topics"), master],
            cwd=tmp_path,
            env=BARE | {"SPARK_WORKER_DIR": str(tmp_path / "cluster" / "work")},
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
