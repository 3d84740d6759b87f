"""What Thulawa needs on this machine: what is there, what is missing, how to get it."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, TypeAlias

from thulawa.kafka.maven import fetched

__all__ = ["Finding", "examine"]

State: TypeAlias = Literal["ok", "missing", "optional"]

_SPARK = "4.2.0"
_JAVA = 17


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for. ``optional``: not there, and not needed by every job."""

    what: str
    state: State
    found: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything, one thing after the other."""
    yield _python()
    yield _java()
    yield _library("pyspark", lambda version: version == _SPARK, f"pip install pyspark=={_SPARK}")
    yield _library("pyarrow", bool, "pip install pyarrow")
    yield _library("pandas", lambda version: version.startswith("2."), "pip install 'pandas<3'")
    yield _connector()
    yield _broker()


def _python() -> Finding:
    # pip refuses to install on an older one
    return Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    text = ""
    if command is not None:
        run = subprocess.run(  # noqa: S603 the java that Spark would run
            [command, "-version"], capture_output=True, text=True, check=False
        )
        text = run.stdout + run.stderr
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', text)
    found = match.group(0).removeprefix("version ").strip('"') if match else "none"
    if match and int(match.group(1)) >= _JAVA:
        return Finding("Java", "ok", found)
    advice = (
        f"install Java {_JAVA}: apt-get install openjdk-17-jre-headless, or brew install openjdk@17"
    )
    return Finding("Java", "missing", found, advice)


def _library(name: str, fits: Callable[[str], object], advice: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "none", advice)
    return (
        Finding(name, "ok", version) if fits(version) else Finding(name, "missing", version, advice)
    )


def _connector() -> Finding:
    found = [jar.name for jar in fetched("connector") if jar.name.startswith("spark-sql-kafka")]
    if found:
        return Finding("Kafka connector", "ok", found[0])
    advice = "only for Kafka: thulawa kafka jars fetches it (Maven is needed)"
    return Finding("Kafka connector", "optional", "none", advice)


def _broker() -> Finding:
    address = os.environ.get("THULAWA_KAFKA", "")
    if not address:
        advice = "only for Kafka: thulawa kafka up, or set THULAWA_KAFKA to host:port"
        return Finding("Kafka broker", "optional", "none", advice)
    host, _, port = address.partition(",")[0].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3):
            return Finding("Kafka broker", "ok", address)
    except (OSError, ValueError) as error:
        return Finding("Kafka broker", "missing", f"{address}: {error}", "start the broker")
