"""Steps of a client that do not come back are given up; what comes back is handed on."""

import threading

import pytest

from thulawa.brokers.kafka import errors
from thulawa.brokers.kafka.errors import BrokerUnreachable, bounded


def test_a_step_that_hangs_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_GRACE", 0.01)
    never = threading.Event()
    try:
        with pytest.raises(BrokerUnreachable, match="did not come back"):
            bounded(lambda _: never.wait(60), 0.01)
    finally:
        never.set()


def test_a_step_is_told_its_time_and_its_outcome_is_handed_on() -> None:
    assert bounded(lambda seconds: seconds, 7.0) == 7.0
    with pytest.raises(ZeroDivisionError):
        bounded(lambda _: 1 / 0, 7.0)
    with pytest.raises(TimeoutError, match="its own"):
        bounded(_times_out, 7.0)


def _times_out(_: float) -> None:
    raise TimeoutError("its own")
