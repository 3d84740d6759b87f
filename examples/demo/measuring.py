"""What a system did, read from the topic that it writes its results to.

A result carries the number of its visit and the time at which the visit was due; the log adds
the time at which the result was written. From these come the rate, the latencies and the proof
of order, whichever system wrote them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from thulawa.brokers.embedded import Log

__all__ = ["Commit", "Tally", "in_step", "percentile", "slope"]

_AT_ONCE = 10_000
_A_SLOPE = 3


@dataclass(frozen=True, slots=True)
class Commit:
    """Results written in one transaction: when, and how many there were by then."""

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

    def __init__(self, log: Log, topic: str, *, warm_up: int) -> None:
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
    def missing(self) -> int:
        """The visits that have no result, although a later one has."""
        return max(self._seen, default=-1) + 1 - len(self._seen)

    def read(self) -> None:
        """Take in what has been committed since."""
        recent: dict[str, float] = {}
        while records := self._consumer.poll(_AT_ONCE):
            for record in records:
                result = json.loads(record.value or b"{}")
                visit: int = result["visit"]
                self.violations += self._last.get(record.key, -1) >= visit
                self._last[record.key] = visit
                self._seen.add(visit)
                if visit < self._warm_up:
                    continue
                latency = (record.timestamp - result["arrived"]) / 1000
                self.latencies.append(latency)
                name = (record.key or b"").decode()
                recent[name] = max(latency, recent.get(name, 0.0))
                self._commit(record.timestamp / 1000)
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
