"""The verdict of the crash matrix finds each kind of difference; a crash point fires once."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.kafka.helpers import CLEAN, Verdict, judge
from tests.chaos.kafka.crash_points import CrashPoints
from tests.chaos.kafka.memory import KINDS, MOST_GROWN, grown, is_flat, resident_mib


class Seen:
    """A record as a consumer returns it."""

    def __init__(self, number: int, value: bytes, keys: int = 2) -> None:
        self._key, self._value = b"key-%d" % (number % keys), value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value


def seen(*numbers: int) -> Any:
    return [Seen(number, b"%d" % number) for number in numbers]


def ranked(*pairs: tuple[int, int]) -> Any:
    return [Seen(number, b"[%d,%d]" % (rank, number)) for rank, number in pairs]


@pytest.mark.parametrize(
    ("messages", "verdict"),
    [
        (seen(0, 1, 2, 3), CLEAN),
        (seen(1, 0, 3, 2), CLEAN),
        (seen(0, 1, 3), Verdict(lost=1)),
        (seen(0, 1, 1, 2, 3), Verdict(duplicated=1)),
        (seen(2, 0, 1, 3), Verdict(reordered=1)),
        (seen(0, 1, 2, 3, 4), Verdict(phantom=1)),
        (ranked((1, 0), (1, 1), (2, 2), (2, 3)), CLEAN),
        (ranked((1, 0), (1, 1), (3, 2), (2, 3)), Verdict(wrong=1)),
    ],
    ids=[
        "clean",
        "keys interleaved",
        "lost",
        "duplicated",
        "reordered",
        "phantom",
        "ranks",
        "state",
    ],
)
def test_the_verdict_counts_each_kind_of_difference(messages: Any, verdict: Verdict) -> None:
    assert judge(messages, range(4), keys=2) == verdict


def test_growth_is_the_difference_of_the_last_third_and_the_third_before() -> None:
    sizes = [50.0, 90.0, 80.0, 85.0, 86.0, 95.0]
    samples = [dict.fromkeys(KINDS, size) for size in sizes]
    assert grown(samples) == dict.fromkeys(MOST_GROWN, 10.0)
    assert grown(samples[:1]) == dict.fromkeys(MOST_GROWN, 0.0)
    assert is_flat(samples)
    assert not is_flat([*samples, samples[-1] | {"worker": 500.0}])
    assert not is_flat([samples[0] | {"jvm": 2_000.0}, *samples])


def test_resident_memory_is_measured_for_the_driver_and_the_broker() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:

        class Here:
            processes = (child.pid, (os.getpid(),))

        deadline = time.monotonic() + 30
        while (found := resident_mib(Here()))["driver"] <= 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        child.communicate(b"\n")
    assert found["driver"] > 5
    assert found["broker"] > 0
    assert (found["jvm"], tuple(found)) == (0.0, KINDS)


def test_a_crash_point_fires_once_after_its_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    points = CrashPoints(tmp_path)
    points.reach("mid batch")
    points.arm("mid batch", [4711], passes=1)
    for point in ("offset log", "mid batch"):
        points.reach(point)
    assert (killed, points.fired) == ([], False)
    points.reach("mid batch")
    assert (killed, points.fired) == ([4711], True)
    points.reach("mid batch")
    assert killed == [4711]
