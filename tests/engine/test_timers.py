"""Timers are due in order; a cancelled one never is, and is removed."""

from random import Random
from typing import Any

from thulawa.engine.timers import Timers


def due(timers: Timers, now: float) -> list[Any]:
    return [subject for _, subject in timers.due(now)]


def do_nothing(_: object) -> None: ...


def test_due_timers_are_yielded_earliest_first() -> None:
    timers = Timers()
    times = [Random(seed).random() for seed in range(50)]
    for when in times:
        timers.add(when, do_nothing, when)
    assert due(timers, 0.5) == sorted(when for when in times if when <= 0.5)
    assert due(timers, 1.0) == sorted(when for when in times if when > 0.5)
    assert len(timers) == 0


def test_timers_of_equal_time_are_yielded_in_the_order_they_were_added() -> None:
    timers = Timers()
    for subject in "abc":
        timers.add(1.0, do_nothing, subject)
    assert due(timers, 1.0) == ["a", "b", "c"]


def test_a_timer_is_due_at_its_time_and_not_before() -> None:
    timers = Timers()
    timers.add(1.0, do_nothing, "a")
    assert due(timers, 0.999) == []
    assert timers.next() == 1.0
    assert due(timers, 1.0) == ["a"]
    assert timers.next() is None


def test_timers_that_become_due_meanwhile_are_yielded_in_the_same_round() -> None:
    timers = Timers()

    def add_another(_: object) -> None:
        timers.add(1.5, do_nothing, "second")

    timers.add(1.0, add_another, "first")
    seen = []
    for action, subject in timers.due(2.0):
        action(subject)
        seen.append(subject)
    assert seen == ["first", "second"]


def test_a_cancelled_timer_is_never_due_and_does_not_count() -> None:
    timers = Timers()
    early, late = timers.add(1.0, do_nothing, "early"), timers.add(2.0, do_nothing, "late")
    timers.cancel(early)
    timers.cancel(early)
    assert len(timers) == 1
    assert timers.next() == 2.0
    assert due(timers, 3.0) == ["late"]
    timers.cancel(late)
    assert len(timers) == 0


def test_a_timer_cancelled_by_another_is_not_yielded() -> None:
    timers = Timers()
    second = timers.add(2.0, do_nothing, "second")
    timers.add(1.0, lambda _: timers.cancel(second), "first")
    seen = []
    for action, subject in timers.due(2.0):
        action(subject)
        seen.append(subject)
    assert seen == ["first"]


def test_cancelled_timers_of_long_timeouts_do_not_accumulate() -> None:
    timers = Timers()
    waiting = timers.add(10_000.0, do_nothing, "waits all along")
    for call in range(10_000):
        timers.cancel(timers.add(3_600.0 + call, do_nothing, "a call's time-out"))
    assert len(timers) == 1
    assert len(timers._heap) < 200
    timers.cancel(waiting)
    assert timers.next() is None
    assert timers._heap == []


def test_a_cancelled_timer_does_not_reference_its_subject() -> None:
    timers = Timers()
    timer = timers.add(3_600.0, do_nothing, "a large ticket")
    timers.cancel(timer)
    assert "a large ticket" not in timer
