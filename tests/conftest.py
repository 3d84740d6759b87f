"""Settings that hold for all tests, and the one Spark session of a process."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Every run explores anew, on CI too, and prints what replays a failure. Time limits are
# pytest's business: on a busy machine a single example may well take a while.
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("explore")


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from thulawa.spark.session import session  # noqa: PLC0415 most tests need no Spark

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report what tests have counted: the calls that were repeated after a fault."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name.replace('_', ' ')}: {value} in {report.nodeid}")
