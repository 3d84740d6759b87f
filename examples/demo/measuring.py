"""What a system did, read from the topic that it writes its results to.

A result carries the number of its visit and the time at which the visit was due. A reader polls the
topic every few milliseconds and notes when it sees the result. From these come the rate, the
latencies and the proof of order, whichever system wrote them.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from thulawa.brokers.embedded import Log

__all__ = ["Commit", "Reader", "Tally", "in_step", "percentile", "slope"]

_AT_ONCE = 10_000
_A_SLOPE = 3
_READING_SECONDS = 0.004  # between two reads of a topic


@dataclass(frozen=True, slots=True)
class Commit:
    """Results that were seen together: when, and how many there were by then."""

    time: float
    finished: int


def slope(commits: Sequence[Commit], since: float, until: float) -> float:
    """Give the events a second: how steeply the results that are there rise with time.

    It is the line of least squares through the commits of the window, so that no single commit
    decides, such as the one that happens to be first or last. Where there are too few for a line
    it is what was committed in the window over its length.
    """
    within = [commit for commit in commits if since <= commit.time <= until]
    if len(within) < _A_SLOPE:
        before = max((c.finished for c in commits if c.time < since), default=0)
        last = max((c.finished for c in within), default=before)
        return (last - before) / (until - since) if until > since else 0.0
    line = linear_regression([c.finished for c in within], [c.time for c in within])
    return 1 / line.slope


def in_step(
    commits: Sequence[Commit], since: float, until: float, arrived: Callable[[float], float]
) -> float:
    """Give the time in the first half of a window at which results are in step with arrivals.

    What is there when the window begins, and is worked off in it, would show as a rate that cannot
    last. ``arrived`` tells what should be finished at a time. Where results never are in step, or
    late, it is the window's beginning.
    """
    for commit in commits:
        if since <= commit.time <= (since + until) / 2 and commit.finished >= arrived(commit.time):
            return commit.time
    return since


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of all do not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Tally:
    """Reads one system's results as they are committed."""

    def __init__(
        self, log: Log, topic: str, *, warm_up: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._consumer = log.consumer(topic)
        self._warm_up = warm_up
        self._last: dict[bytes | None, int] = {}
        self._seen: set[int] = set()
        self.commits: list[Commit] = []
        self.latencies: list[float] = []
        self.slowest: dict[str, float] = {}
        self.violations = 0
        self.warm = False

    @property
    def finished(self) -> int:
        """The results that are there, without those of the warm-up."""
        return len(self.latencies)

    @property
    def last(self) -> int:
        """The highest number of a visit that has a result; -1 where none has."""
        return max(tuple(self._seen), default=-1)

    def missing(self, before: int) -> int:
        """Return the number of visits before this one that have no result."""
        return sum(visit not in self._seen for visit in range(before))

    def read(self) -> None:
        """Take in what has been committed since."""
        recent: dict[str, float] = {}
        while records := self._consumer.poll(_AT_ONCE):
            now = self._clock()
            for record in records:
                result = json.loads(record.value or b"{}")
                visit: int = result["visit"]
                self.violations += self._last.get(record.key, -1) >= visit
                self._last[record.key] = visit
                self._seen.add(visit)
                if visit < self._warm_up:
                    continue
                latency = now - result["arrived"] / 1000
                self.latencies.append(latency)
                name = (record.key or b"").decode()
                recent[name] = max(latency, recent.get(name, 0.0))
                self._commit(now)
        self.warm = len(self._seen) >= self._warm_up
        self.slowest = recent or self.slowest

    def close(self) -> None:
        """Let go of the log."""
        self._consumer.close()

    def _commit(self, time: float) -> None:
        commit = Commit(time, self.finished)
        if self.commits and self.commits[-1].time == time:
            self.commits[-1] = commit
        else:
            self.commits.append(commit)


class Reader:
    """Reads the results of all systems on a thread of its own, until it is closed."""

    def __init__(self, tallies: Sequence[Tally]) -> None:
        self._tallies = tallies
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="thulawa-results", daemon=True)
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(_READING_SECONDS):
                for tally in self._tallies:
                    tally.read()
        except Exception as error:  # noqa: BLE001 raised where it is seen
            self._error = error
