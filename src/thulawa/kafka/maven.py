"""Jars from Maven, fetched once into a cache: the broker's and those of Spark's connector.

Each set is a pom beside this file. Its jars lie in a folder named after the pom's content, so a
new version of the pom is a new folder. A set is fetched beside its place and moved there whole:
two processes may fetch at once, and one that is killed leaves nothing half done.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

from thulawa.kafka.errors import BrokerFailed, ToolMissing

__all__ = ["JarSet", "cache_folder", "connector_jars", "fetched", "jars"]

JarSet: TypeAlias = Literal["broker", "connector"]

_POMS = Path(__file__).parent / "maven"
_PATIENCE = 600.0
_SHOWN = 2_000


def cache_folder() -> Path:
    """Give the folder for jars and brokers: ``THULAWA_CACHE``, else in the user's cache."""
    chosen = os.environ.get("THULAWA_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thulawa"


def connector_jars() -> list[Path]:
    """Give the jars of Spark's Kafka connector, for ``spark.jars``; fetched on first use."""
    return jars("connector")


def fetched(name: JarSet) -> list[Path]:
    """Give the jars of a set that are on this machine already; none where it was not fetched."""
    return sorted(_place(name).glob("*.jar"))


def jars(name: JarSet) -> list[Path]:
    """Give the jars of a set, fetched on first use."""
    return fetched(name) or _fetch(name)


def _place(name: JarSet) -> Path:
    content = hashlib.sha256((_POMS / f"{name}.xml").read_bytes()).hexdigest()[:12]
    return cache_folder() / "jars" / f"{name}-{content}"


def _fetch(name: JarSet) -> list[Path]:
    command = shutil.which("mvn")
    if command is None:
        raise ToolMissing("mvn (Apache Maven) is not there to fetch the jars with")
    place = _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place.parent) as temporary:
        # maven wants to write beside the pom; the installed package may be read-only
        pom = shutil.copy(_POMS / f"{name}.xml", temporary)
        copied = Path(temporary) / "jars"
        _run(
            [command, "--batch-mode", "--quiet", f"--file={pom}",
             "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={copied}"],
            name,
        )  # fmt: skip
        try:
            copied.rename(place)
        except OSError:
            if not fetched(name):  # else another process was faster
                raise
    return fetched(name)


def _run(command: list[str], name: JarSet) -> None:
    try:
        run = subprocess.run(  # noqa: S603 the mvn of this machine, over our own pom
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerFailed(f"Maven did not fetch the {name} jars in {_PATIENCE:.0f} s") from error
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-_SHOWN:]
        raise BrokerFailed(f"Maven could not fetch the {name} jars: {said}")
