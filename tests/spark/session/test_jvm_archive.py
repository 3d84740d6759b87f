"""Spark's classes made ready: used where they are, and nowhere else."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import thulawa
from thulawa.spark.session import jvm_archive


def java_options(monkeypatch: pytest.MonkeyPatch, **settings: str) -> str | None:
    """Give what a session would have the JVM told, if none ran yet."""
    monkeypatch.setattr("thulawa.spark.session.spark_session._set_elsewhere", set)
    builder = SparkSession.Builder()
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    made: dict[str, str] = thulawa.configure(builder)._options
    return made.get("spark.driver.extraJavaOptions")


def test_a_session_uses_what_was_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert java_options(monkeypatch) is None
    file = jvm_archive._archive_path()
    assert file is not None
    file.parent.mkdir(parents=True)
    file.touch()
    assert f"-XX:SharedArchiveFile={file} " in (java_options(monkeypatch) or "")
    assert jvm_archive.make() == file
    chosen = java_options(monkeypatch, spark_driver_extraJavaOptions="-Xss4m")
    assert chosen == "-Xss4m"


def test_other_versions_have_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = jvm_archive._archive_path()
    monkeypatch.setattr("pyspark.__version__", "4.99")
    assert jvm_archive._archive_path() != here
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jvm_archive._archive_path() is None
    assert jvm_archive.options() == ""
    assert jvm_archive.make() is None
