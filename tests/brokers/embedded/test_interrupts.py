"""Ctrl-C at any line: nothing is written twice, nothing is lost, nobody is locked out."""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from tests.brokers.embedded.helpers import keyed, numbered, values
from thulawa.brokers.embedded import Log


def interrupted(work: Callable[[], object], at: int) -> bool:
    """Run work with a KeyboardInterrupt at a line of the log's code; tell whether it came."""
    left = at

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if "/thulawa/brokers/embedded/" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            left = -1  # once, so that what cleans up after it is left alone
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)
    return left < 0


def test_an_interrupted_flush_can_be_repeated_wherever_it_was(log: Log) -> None:
    log.create_topic("visits")
    at = 0
    came = True
    with Log(log.address, timeout=1) as neighbour:
        while came:
            at += 1
            producer = log.producer()
            producer.send("visits", value=b"%d" % (3 * at))
            came = interrupted(producer.flush, at)
            neighbour.append({"visits": numbered([3 * at + 1])})
            producer.send("visits", value=b"%d" % (3 * at + 2))
            producer.close()
    assert at > 50
    found = sorted(int(value or b"-1") for value in values(log, "visits"))
    assert found == list(range(3, 3 * at + 3))


# one that comes as a `with` is about to close the lock's file leaves that to the garbage collector
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <.*cleaning.lock:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupted_cleaning_locks_nobody_out_and_can_be_repeated(log: Log) -> None:
    log.create_topic("table", compact=True)
    at = 0
    came = True
    with Log(log.address, timeout=1) as neighbour:
        while came:
            at += 7
            log.append({"table": keyed(("a", "old"), ("b", str(at)), ("a", str(at)))})
            came = interrupted(lambda: log.clean("table"), at)
            neighbour.append({"table": keyed(("c", str(at)))})
            log.clean("table")
            assert values(log, "table") == [b"%d" % at] * 3
    assert at > 70
