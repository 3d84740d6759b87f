"""A log in a temporary folder, with a clock that tests set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.helpers import Clock
from thulawa.log import Log


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with Log(f"file:{tmp_path / 'topics'}", clock=clock) as log:
        yield log
