"""Durations in texts, numbers and timedeltas."""

from datetime import timedelta
from typing import Any

import pytest

from thulawa.core.durations import milliseconds
from thulawa.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0),
        ("1 ms", 1),
        ("90s", 90_000),
        ("1.5 minutes", 90_000),
        ("1h 30min", 5_400_000),
        ("2 days, 3 hours", 183_600_000),
        (timedelta(minutes=1), 60_000),
    ],
)
def test_durations_are_parsed(written: Any, meant: int) -> None:
    assert milliseconds(written) == meant


@pytest.mark.parametrize("written", ["", "5", "five minutes", "5 parsecs", -1, 1.5, True, None])
def test_an_invalid_duration_is_rejected_by_name(written: Any) -> None:
    with pytest.raises(ConfigurationError, match="grace"):
        milliseconds(written, name="grace")
