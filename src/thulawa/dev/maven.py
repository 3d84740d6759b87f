"""Jars from Maven, fetched once into a cache: those of the broker for development.

A set is a pom beside this file. Its jars lie in a folder named after the pom's content, so a
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

from thulawa.brokers.kafka.errors import BrokerFailed, ToolMissing

__all__ = ["JarSet", "cache_folder", "fetched", "jars", "made"]

JarSet: TypeAlias = Literal["broker"]

_POMS = Path(__file__).parent / "maven"
_PATIENCE = 600.0
_SHOWN = 2_000


def cache_folder() -> Path:
    """Give the folder for jars and brokers: ``THULAWA_CACHE``, else in the user's cache."""
    chosen = os.environ.get("THULAWA_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thulawa"


def fetched(name: JarSet) -> list[Path]:
    """Give the jars of a set that are on this machine already; none where it was not fetched."""
    return sorted(_place(name, _POMS / f"{name}.xml").glob("*.jar"))


def jars(name: JarSet) -> list[Path]:
    """Give the jars of a set, fetched on first use."""
    return fetched(name) or made(name, _POMS / f"{name}.xml")


def made(name: str, pom: Path) -> list[Path]:
    """Give the jars of a pom, fetched on first use; with sources beside it, they are built too.

    Nothing is written outside the cache.
    """
    place = _place(name, pom)
    if not place.exists():
        _make(name, pom, place)
    return sorted(place.glob("*.jar"))


def _place(name: str, pom: Path) -> Path:
    digest = hashlib.sha256()
    for file in [pom, *_sources(pom)]:
        digest.update(file.read_bytes())
    return cache_folder() / "jars" / f"{name}-{digest.hexdigest()[:12]}"


def _sources(pom: Path) -> list[Path]:
    return sorted((pom.parent / "src").rglob("*.java"))


def _make(name: str, pom: Path, place: Path) -> None:
    command = shutil.which("mvn")
    if command is None:
        raise ToolMissing("mvn (Apache Maven) is not there to fetch the jars with")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place.parent) as temporary:
        # maven wants to write beside the pom; the installed package may be read-only
        folder = Path(temporary)
        copy = shutil.copy(pom, folder / "pom.xml")
        jars_made = folder / "jars"
        goals = ["dependency:copy-dependencies"]
        if _sources(pom):
            shutil.copytree(pom.parent / "src", folder / "src")
            goals.insert(0, "package")
        _run(
            [command, "--batch-mode", "--quiet", f"--file={copy}", *goals,
             "-DincludeScope=runtime", f"-DoutputDirectory={jars_made}"],
            name,
        )  # fmt: skip
        for built in folder.glob("target/*.jar"):
            shutil.copy(built, jars_made)
        try:
            jars_made.rename(place)
        except OSError:
            if not place.exists():  # else another process was faster
                raise


def _run(command: list[str], name: str) -> None:
    try:
        run = subprocess.run(  # noqa: S603 the mvn of this machine, over our own pom
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerFailed(f"Maven did not fetch the {name} jars in {_PATIENCE:.0f} s") from error
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-_SHOWN:]
        raise BrokerFailed(f"Maven could not fetch the {name} jars: {said}")
