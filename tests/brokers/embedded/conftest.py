"""A log in a temporary folder, with a clock that tests set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.embedded.helpers import Clock
from thulawa.brokers.embedded import Log


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}", clock=clock) as log:
        yield log
