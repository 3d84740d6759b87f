"""The checker of the crash matrix sees each kind of damage, and the trap is sprung once."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.kafka.helpers import CLEAN, Verdict, judge
from tests.chaos.kafka.memory import KINDS, MOST_GROWN, grown, is_flat, resident_mib
from tests.chaos.kafka.traps import Traps


class Seen:
    """A record as a reader sees it."""

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
    ids=["clean", "keys interleaved", "lost", "doubled", "reordered", "phantom", "ranks", "state"],
)
def test_damage_is_seen(messages: Any, verdict: Verdict) -> None:
    assert judge(messages, range(4), keys=2) == verdict


def test_growth_is_that_of_the_last_third_over_the_one_before() -> None:
    sizes = [50.0, 90.0, 80.0, 85.0, 86.0, 95.0]
    samples = [dict.fromkeys(KINDS, size) for size in sizes]
    assert grown(samples) == dict.fromkeys(MOST_GROWN, 10.0)
    assert grown(samples[:1]) == dict.fromkeys(MOST_GROWN, 0.0)
    assert is_flat(samples)
    assert not is_flat([*samples, samples[-1] | {"worker": 500.0}])
    assert not is_flat([samples[0] | {"jvm": 2_000.0}, *samples])


def test_memory_is_that_of_the_processes_that_are_asked_for() -> None:
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


def test_a_trap_strikes_once_at_its_point_after_its_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    traps = Traps(tmp_path)
    traps.passed("mid batch")
    traps.arm("mid batch", [4711], passes=1)
    for point in ("offset log", "mid batch"):
        traps.passed(point)
    assert (killed, traps.sprung) == ([], False)
    traps.passed("mid batch")
    assert (killed, traps.sprung) == ([4711], True)
    traps.passed("mid batch")
    assert killed == [4711]
