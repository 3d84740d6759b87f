"""Jars from Maven, downloaded once into a cache: those of the development broker.

A set is a pom in this package. Its jars are in a folder named after the hash of the pom, so a new
version of the pom has a new folder. A set is downloaded to a temporary folder and renamed: two
processes may download concurrently, and a killed one leaves nothing incomplete.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

from thulawa.errors import BrokerFailed, ToolMissing

JarSet: TypeAlias = Literal["broker"]

_POMS = Path(__file__).parent / "maven"
_TIMEOUT = 600.0
_SHOWN = 2_000


def cache_folder() -> Path:
    """Return the folder for jars and brokers: ``THULAWA_CACHE``, else in the user's cache."""
    chosen = os.environ.get("THULAWA_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thulawa"


def fetched(name: JarSet) -> list[Path]:
    """Return the jars of a set that were downloaded already."""
    return sorted(_jar_folder(name, _POMS / f"{name}.xml").glob("*.jar"))


def jars(name: JarSet) -> list[Path]:
    """Return the jars of a set, downloaded on first use."""
    return fetched(name) or made(name, _POMS / f"{name}.xml")


def made(name: str, pom: Path) -> list[Path]:
    """Return the jars of a pom, downloaded on first use; sources beside it are built too.

    Nothing is written outside the cache.
    """
    folder = _jar_folder(name, pom)
    if not folder.exists():
        _download(name, pom, folder)
    return sorted(folder.glob("*.jar"))


def _jar_folder(name: str, pom: Path) -> Path:
    digest = hashlib.sha256()
    for file in [pom, *_sources(pom)]:
        digest.update(file.read_bytes())
    return cache_folder() / "jars" / f"{name}-{digest.hexdigest()[:12]}"


def _sources(pom: Path) -> list[Path]:
    return sorted((pom.parent / "src").rglob("*.java"))


def _download(name: str, pom: Path, target: Path) -> None:
    command = shutil.which("mvn")
    if command is None:
        raise ToolMissing("mvn (Apache Maven) is not installed; it downloads the jars")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as temporary:
        # Maven writes beside the pom, and the installed package may be read-only
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
            jars_made.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise


def _run(command: list[str], name: str) -> None:
    try:
        run = subprocess.run(  # noqa: S603 the mvn of this machine, over our own pom
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerFailed(f"Maven did not fetch the {name} jars in {_TIMEOUT:.0f} s") from error
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-_SHOWN:]
        raise BrokerFailed(f"Maven could not fetch the {name} jars: {said}")
