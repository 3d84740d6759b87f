"""Steps of a client that do not come back are given up; what comes back is handed on."""

import threading

import pytest

from thulawa.brokers.kafka import client_errors
from thulawa.brokers.kafka.client_errors import call_with_timeout
from thulawa.errors import BrokerUnreachable


def test_a_step_that_hangs_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_errors, "_GRACE", 0.01)
    never = threading.Event()
    try:
        with pytest.raises(BrokerUnreachable, match="did not come back"):
            call_with_timeout(lambda _: never.wait(60), 0.01)
    finally:
        never.set()


def test_a_step_is_told_its_time_and_its_outcome_is_handed_on() -> None:
    assert call_with_timeout(lambda seconds: seconds, 7.0) == 7.0
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(lambda _: 1 / 0, 7.0)
    with pytest.raises(TimeoutError, match="its own"):
        call_with_timeout(_times_out, 7.0)


def _times_out(_: float) -> None:
    raise TimeoutError("its own")
