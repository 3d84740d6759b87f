"""The peers: Java programs, built by Maven into the cache, run as processes of their own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thulawa.dev.maven import made

__all__ = ["VERSIONS", "build", "peer"]

VERSIONS = {"kafka_streams": "4.1.1", "parallel_consumer": "0.5.3.3"}
_POM = Path(__file__).with_name("pom.xml")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
_HEAP = ("-Xms512m", "-Xmx2g")


def build() -> list[Path]:
    """Give the jars of the peers, built on first use."""
    return made("peers", _POM)


@contextmanager
def peer(program: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a peer until the block ends; what it says goes to a file."""
    java = shutil.which("java") or "java"
    classpath = os.pathsep.join(map(str, build()))
    with log.open("ab") as said:
        process = subprocess.Popen(  # noqa: S603 the java of this machine, over jars we built
            [java, *_HEAP, _QUIET, "-cp", classpath, f"thulawa.peers.{program}", *arguments],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
