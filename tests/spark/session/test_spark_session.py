"""A session gets what Thulawa needs, and keeps what somebody has chosen."""

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from thulawa.spark.session.spark_session import configure

STATE = "spark.sql.streaming.stateStore.providerClass"
ARROW = "spark.sql.execution.arrow.pyspark.enabled"
SET = {STATE, ARROW, "spark.speculation"}


def chosen(builder: Any) -> dict[str, str]:
    options: dict[str, str] = configure(builder)._options
    return options


@pytest.fixture(autouse=True)
def before_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it look as if Spark had not been started yet."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    for name in ("MASTER", "PYSPARK_PYTHON", "THULAWA_PYTHON", "THULAWA_SPARK"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_what_is_needed_is_set() -> None:
    options = chosen(SparkSession.Builder())
    assert options.keys() >= SET
    assert (options[ARROW], options["spark.speculation"]) == ("true", "false")
    assert options[STATE].endswith("RocksDBStateStoreProvider")


def test_what_the_builder_has_stays() -> None:
    assert chosen(SparkSession.Builder().config(STATE, "mine"))[STATE] == "mine"


@pytest.mark.parametrize(
    "line", [f"{STATE} mine", f"  {STATE}=mine", f"{STATE}:mine", f"spark.a b\n{STATE}\tmine"]
)
def test_what_the_file_of_defaults_sets_is_not_overridden(tmp_path: Path, line: str) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"# {ARROW} false\n{line}\n")
    assert SET - chosen(SparkSession.Builder()).keys() == {STATE}


@pytest.mark.parametrize("argument", ["--conf {}=mine", "--conf={}=mine", "--conf '{}=mine'"])
def test_what_the_arguments_of_spark_submit_set_is_not_overridden(
    monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    arguments = f"--name a {argument.format(STATE)} pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert SET - chosen(SparkSession.Builder()).keys() == {STATE}


def test_a_spark_that_runs_already_is_asked(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    options = chosen(SparkSession.Builder())
    assert SET & options.keys() == set()
    assert spark.conf.get(ARROW) == "true"
