"""The poll thread of a host, over a consumer that always has records."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import pytest

from thulawa.brokers.port import PolledRecords
from thulawa.core.types import TopicPartition
from thulawa.spark.continuous import poll_thread as module
from thulawa.spark.continuous.poll_thread import PollThread

A, B = TopicPartition("in", 0), TopicPartition("in", 1)


class EndlessConsumer:
    """A consumer with one more record of each partition that is not paused, at each poll."""

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self.pauses = 0
        self.closed = False

    def poll(self, max_records: int, timeout: float) -> list[PolledRecords]:
        time.sleep(0.001)
        return [
            PolledRecords(place, [0], [0], [None], [None], [()], 1, at_end=False)
            for place in (A, B)
            if place not in self.paused
        ]

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.pauses += len(partitions)
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def consumer() -> EndlessConsumer:
    return EndlessConsumer()


@pytest.fixture
def thread(consumer: EndlessConsumer) -> Iterator[PollThread]:
    thread = PollThread(consumer, lambda: None)
    yield thread
    thread.stop()
    assert consumer.closed


def polled(thread: PollThread, seconds: float) -> Counter[TopicPartition]:
    """Take what is polled in some time."""
    found: Counter[TopicPartition] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.update(one.partition for one in thread.take())
        time.sleep(0.001)
    return found


def until_paused(thread: PollThread, consumer: EndlessConsumer) -> None:
    """Take what is polled, as a thread that is ahead waits for that, until A is paused."""
    until(lambda: polled(thread, 0.01) is not None and consumer.paused == {A})


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_partitions_that_are_full_for_a_moment_are_not_paused(
    thread: PollThread, consumer: EndlessConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOLD_SECONDS", 60.0)
    for _ in range(3):
        thread.set_full(frozenset((A,)), waiting=False)
        polled(thread, 0.02)
        assert not polled(thread, 0.05)  # nothing is read meanwhile
        thread.set_full(frozenset(), waiting=False)
        until(lambda: polled(thread, 0.01).keys() == {A, B})
    assert consumer.pauses == 0


def test_partitions_that_stay_full_are_paused_and_the_others_read(
    thread: PollThread, consumer: EndlessConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOLD_SECONDS", 0.05)
    thread.set_full(frozenset((A,)), waiting=False)
    until_paused(thread, consumer)
    polled(thread, 0.02)
    until(lambda: polled(thread, 0.01).keys() == {B})
    thread.set_full(frozenset((A,)), waiting=False)  # full still: the others are read on
    until(lambda: polled(thread, 0.01).keys() == {B})
    thread.set_full(frozenset(), waiting=False)
    until(lambda: polled(thread, 0.01).keys() == {A, B})
    assert consumer.pauses == 1


def test_partitions_are_paused_at_once_for_tasks_that_wait_for_others(
    thread: PollThread, consumer: EndlessConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOLD_SECONDS", 60.0)
    thread.set_full(frozenset((A,)), waiting=False)
    thread.set_full(frozenset((A,)), waiting=True)
    until_paused(thread, consumer)
    until(lambda: polled(thread, 0.01).keys() == {B})
