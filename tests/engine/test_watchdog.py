"""Functions that block the loop are warned about, with their name."""

import logging
import threading
import time
from typing import Self

import pytest

from tests.engine.driver_parts import (
    LOOPS,
    FakeSink,
    FakeSource,
    numbered,
    run_on,
)
from thulawa.engine import Engine, Options, WorkItem


class Warned(logging.Handler):
    """Collects warnings of any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.come.set()

    def __enter__(self) -> Self:
        logging.getLogger("thulawa.engine").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("thulawa.engine").removeHandler(self)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_function_that_blocks_the_loop_is_warned_about_while_it_does(loop: str) -> None:
    def innermost(record: WorkItem) -> bool:
        return warned.come.wait(timeout=20)  # blocks until the warning, or for 20 s

    async def blocks_the_loop(record: WorkItem) -> bool:
        return innermost(record)

    with Warned() as warned:
        sink = FakeSink()
        run_on(Engine(blocks_the_loop).run(FakeSource(numbered("a")), sink), loop)
    assert sink.results() == [True], "no warning came while it blocked"
    (message,) = warned.messages
    assert "blocks_the_loop has blocked the event loop" in message
    assert "threading.py:" in message, "the line at which it blocks"


def test_a_blocking_call_is_warned_about_once_and_the_next_one_again() -> None:
    async def blocks(record: WorkItem) -> None:
        warned.come.clear()
        assert warned.come.wait(timeout=20)
        time.sleep(0.4)  # noqa: ASYNC251 the point

    with Warned() as warned:
        run_on(Engine(blocks).run(FakeSource(numbered("aa")), FakeSink()))
    assert len(warned.messages) == 2


def test_a_loop_that_is_merely_busy_is_not_warned_about() -> None:
    spun = 0.0

    async def spin(record: WorkItem) -> None:
        nonlocal spun
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        spun += 0.002

    with Warned() as warned:
        options = Options(in_flight=500)
        run_on(Engine(spin, options).run(FakeSource(numbered(range(500))), FakeSink()))
    assert spun > 0.9
    assert warned.messages == []


def test_a_plain_function_may_block() -> None:
    def blocks(record: WorkItem) -> None:
        time.sleep(0.6)

    with Warned() as warned:
        run_on(Engine(blocks).run(FakeSource(numbered("a")), FakeSink()))
    assert warned.messages == []
