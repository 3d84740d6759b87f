"""Settings that hold for all tests, and the one Spark session of a process."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The JVMs of a test live for seconds or a few minutes: the optimizing compiler costs them more than
# it saves. Half of the processor time that Spark needs to start and run a first query is its own.
for name in ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1")

# Every run explores anew, on CI too, and prints what replays a failure. Time limits are
# pytest's business: on a busy machine a single example may well take a while.
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("explore")


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from thulawa.spark.session.spark_session import session  # noqa: PLC0415 most tests need no Spark

    made = session(
        "thulawa-tests",
        master="local[2,4]",
        settings={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
        },
    )
    yield made
    made.stop()


@pytest.hookimpl(trylast=True)  # after pytest-randomly has shuffled them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no worker is left alone with one at the end.

    Long tests are those with a time limit of their own. pytest-xdist cuts the list into one part
    for each worker; each part begins with its share of them.
    """
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    long = sorted((item for item in items if _time_limit(item)), key=_time_limit, reverse=True)
    short = [item for item in items if not _time_limit(item)]
    size = len(items) // workers
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        first = long[worker::workers]
        ordered += first
        room = max(size - len(first), 0) if worker < workers - 1 else len(short)
        ordered += short[:room]
        short = short[room:]
    items[:] = ordered


def _time_limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report what tests have counted: the calls that were repeated after a fault."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name.replace('_', ' ')}: {value} in {report.nodeid}")
