"""Check what Thulawa needs on this machine, and how to install what is missing."""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from thulawa.dev.kafka_broker import brokers

State: TypeAlias = Literal["ok", "missing", "optional"]

_SPARK = "4.2.0"
_JAVA = 17
_PYTHON = (3, 11)
_BROKER = "start the broker, or set THULAWA_KAFKA to the host:port of one that runs"
_STATEFUL = ("googleapis-common-protos", "grpcio", "grpcio-status", "protobuf", "zstandard")


@dataclass(frozen=True, slots=True)
class Finding:
    """One requirement. ``optional``: not found, and not needed by every job."""

    what: str
    state: State
    found: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Yield the result of every check."""
    yield from _spark()
    yield _stateful()
    yield _library("uvloop", bool, "for more calls a second: pip install uvloop", "optional")
    yield _broker()


def missing_for_spark() -> list[Finding]:
    """Return the missing requirements without which Spark does not start."""
    return [finding for finding in _spark() if finding.state == "missing"]


def _spark() -> Iterator[Finding]:
    python = platform.python_version()
    if sys.version_info >= _PYTHON:
        yield Finding("Python", "ok", python)
    else:
        yield Finding("Python", "missing", python, "install Python 3.11 or newer")
    yield _java()
    yield _library("pyspark", lambda version: version == _SPARK, f"pip install pyspark=={_SPARK}")
    home = os.environ.get("SPARK_HOME")
    if home and not list(Path(home, "jars").glob(f"spark-core_*-{_SPARK}.jar")):
        advice = f"unset SPARK_HOME, or set it to Spark {_SPARK}"
        yield Finding("SPARK_HOME", "missing", home, advice)
    yield _library("pyarrow", bool, "pip install pyarrow")
    yield _library("pandas", lambda version: version.startswith("2."), "pip install 'pandas<3'")


def _stateful() -> Finding:
    found = {name: _version(name) for name in _STATEFUL}
    absent = [name for name, version in found.items() if version is None]
    what = "Spark's state API"
    if not absent:
        return Finding(what, "ok", ", ".join(f"{name} {found[name]}" for name in _STATEFUL[1::2]))
    return Finding(what, "missing", f"no {', '.join(absent)}", f"pip install {' '.join(absent)}")


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


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _library(
    name: str, fits: Callable[[str], object], advice: str, otherwise: State = "missing"
) -> Finding:
    version = _version(name)
    if version is not None and fits(version):
        return Finding(name, "ok", version)
    return Finding(name, otherwise, version or "none", advice)


def _broker() -> Finding:
    address = os.environ.get("THULAWA_KAFKA", "")
    if not address:
        here = [status for status in (one.status() for one in brokers()) if status.running]
        if here:
            return Finding("Kafka broker", "ok", ", ".join(status.bootstrap for status in here))
        advice = "only for Kafka: thulawa kafka up, or set THULAWA_KAFKA to host:port"
        return Finding("Kafka broker", "optional", "none", advice)
    host, _, port = address.partition(",")[0].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3):
            return Finding("Kafka broker", "ok", address)
    except (OSError, ValueError) as error:
        return Finding("Kafka broker", "missing", f"{address}: {error}", _BROKER)
