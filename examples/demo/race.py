"""The demonstration: the job of the Thulawa paper on Spark, measured here and now.

Visits arrive at a steady rate in one partition of the embedded log, and each needs a lookup that
takes a while. For each latency four systems read the same visits at the same time, each its own
way (`enrichment`), and write to a topic of their own. All figures come from those topics.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from typing import Any

import thulawa
from examples.demo.enrichment import SYSTEMS, Place, Running, System, start
from examples.demo.measuring import Reader, Tally, in_step, percentile, slope
from examples.demo.service import Lookups, lookup_service
from examples.demo.visits import Visits
from thulawa.brokers.embedded import Log
from thulawa.errors import ThulawaError

__all__ = ["DemoFailed", "Job", "Look", "Moment", "Row", "Watcher", "run"]

_WARM_UP = 2  # visits; they start the workers and open the connections
_SETTLING = 2.0  # seconds before the window: the first batches are smaller than the rest
_BATCH = 2.5  # seconds of work in a batch of what takes one visit at a time
_SECONDS_TO_START = 120
_SECONDS_TO_FINISH = 10
_GLANCE = 0.25
_SLOWEST = 3

# Lookups last a while, so batches do, and commits are fewer: the window grows with the latency.
_LOOKUPS_TO_SETTLE = 4
_LOOKUPS_IN_WINDOW = 60

# it is over in minutes: what the JVM compiles well, it would compile too late
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.jars": "",  # no broker here
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class DemoFailed(ThulawaError):
    """The demonstration could not be shown, or showed what must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is demonstrated."""

    latencies: tuple[int, ...]
    rate: float
    seconds: float
    keys: int

    def settling(self, latency_ms: int) -> float:
        """Give the seconds that pass before the window."""
        return min(_SETTLING, self.seconds) + _LOOKUPS_TO_SETTLE * latency_ms / 1000

    def visits_per_batch(self, latency_ms: int) -> int:
        """Give the visits in a batch of what takes one at a time: some seconds' work."""
        return max(1, round(min(_BATCH, self.seconds / 3) * 1000 / max(latency_ms, 1)))

    def window(self, latency_ms: int) -> float:
        """Give the seconds that are measured."""
        return self.seconds + _LOOKUPS_IN_WINDOW * latency_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one run measured."""

    system: System
    latency_ms: int
    events_per_second: float
    p50_ms: float
    p99_ms: float
    order_violations: int

    def as_json(self) -> dict[str, Any]:
        """Give the row as JSON prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One system at one moment. ``in_flight`` is the most since the look before."""

    system: System
    events_per_second: float
    in_flight: int
    waiting: int
    slowest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All systems at one moment of a race."""

    latency_ms: int
    passed: float
    total: float
    looks: tuple[Look, ...]


class Watcher:
    """Is told how the demonstration goes on; does nothing about it."""

    def doing(self, what: str) -> None:
        """Take note of what is being prepared."""

    def moment(self, moment: Moment) -> None:
        """Take note of a moment of a race."""

    def result(self, rows: list[Row]) -> None:
        """Take note of what a race came to."""


def run(job: Job, folder: Path, watcher: Watcher) -> list[Row]:
    """Measure every system at every latency; ``folder`` takes the log and all else."""
    rows: list[Row] = []
    watcher.doing("Starting Spark and the lookup service")
    with lookup_service() as port, _spark(folder) as spark, Log(f"file:{folder}/topics") as log:
        for latency in job.latencies:
            with _race(spark, log, folder, port(), job, latency, watcher) as race:
                race.warm_up()
                rows += race.run()
            watcher.result(rows[-len(SYSTEMS) :])
    return rows


@contextmanager
def _spark(folder: Path) -> Iterator[Any]:
    from thulawa.spark.session import jvm_archive  # noqa: PLC0415 it loads Spark

    settings = _SETTINGS | {
        "spark.driver.extraJavaOptions": f"{_JAVA} {jvm_archive.options()}",
        "spark.local.dir": f"{folder}/spark",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    try:
        # four tasks at once that mostly wait: more than there may be cores
        spark = thulawa.session("thulawa-demo", master="local[6]", settings=settings)
    except Exception as error:
        raise DemoFailed(f"Spark did not start: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True, eq=False)
class _Runner:
    """One system at work."""

    system: System
    running: Running
    tally: Tally

    @property
    def warm(self) -> bool:
        """Whether its first results are there, and a whole batch is committed."""
        return self.tally.warm and self.running.ready

    def raise_failure(self) -> None:
        """Raise what ended it, if it has ended."""
        try:
            self.running.raise_failure()
        except Exception as error:
            raise DemoFailed(f"{self.system} failed: {error}") from error


@contextmanager
def _race(
    spark: Any, log: Log, folder: Path, port: int, job: Job, latency_ms: int, watcher: Watcher
) -> Iterator["_Race"]:
    """Start all systems on the same visits; stop them at the end."""
    watcher.doing(f"Starting four systems with lookups of {latency_ms} ms")
    topic = f"visits-{latency_ms}ms"
    log.create_topic(topic)
    with ExitStack() as stack:
        visits = Visits(log, topic, rate=job.rate, keys=job.keys)
        stack.callback(visits.stop)
        lookups = stack.enter_context(closing(Lookups(port)))
        runners = []
        for system in SYSTEMS:
            results = f"located-{latency_ms}ms-{system}"
            log.create_topic(results)
            place = Place(
                log=log.address,
                visits=topic,
                results=results,
                checkpoint=folder / "checkpoints" / results,
                port=port,
                latency_ms=latency_ms,
                visits_per_batch=job.visits_per_batch(latency_ms),
            )
            # one by one: Spark fails at times when the first queries of a session start together
            running = start(spark, system, place)
            stack.callback(running.stop)
            tally = stack.enter_context(closing(Tally(log, results, warm_up=_WARM_UP)))
            runners.append(_Runner(system, running, tally))
        reader = stack.enter_context(closing(Reader([runner.tally for runner in runners])))
        yield _Race(job, latency_ms, visits, lookups, runners, reader, watcher)


@dataclass(frozen=True, slots=True)
class _Race:
    """All systems at work on the same visits."""

    job: Job
    latency_ms: int
    visits: Visits
    lookups: Lookups
    runners: list[_Runner]
    reader: Reader
    watcher: Watcher

    def warm_up(self) -> None:
        """Wait until each system has shown a result."""
        self.visits.warm_up(_WARM_UP)
        deadline = time.monotonic() + _SECONDS_TO_START
        while not all(runner.warm for runner in self.runners):
            if time.monotonic() > deadline:
                raise DemoFailed(f"not all systems had a result within {_SECONDS_TO_START} s")
            time.sleep(0.05)
            self._raise_failure()

    def run(self) -> list[Row]:
        """Let visits arrive until the window has passed; measure."""
        self.visits.start()
        since = self.visits.started + self.job.settling(self.latency_ms)
        until = since + self.job.window(self.latency_ms)
        while (now := time.time()) < until:
            time.sleep(min(_GLANCE, until - now))
            self._raise_failure()
            self.watcher.moment(self._moment(since, until))
        rows = [self._row(runner, since, until) for runner in self.runners]
        self._await_missing({runner: runner.tally.last for runner in self.runners})
        return rows

    def _await_missing(self, last: dict[_Runner, int]) -> None:
        """Wait for the results that others of later visits have overtaken; raise if one is lost."""
        deadline = time.monotonic() + _SECONDS_TO_FINISH + self.latency_ms / 1000
        for runner, visit in last.items():
            while missing := runner.tally.missing(visit):
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"{runner.system} lost {missing} visits at {self.latency_ms} ms"
                    )
                time.sleep(0.05)
                self._raise_failure()

    def _raise_failure(self) -> None:
        self.reader.raise_failure()
        for runner in self.runners:
            runner.raise_failure()

    def _moment(self, since: float, until: float) -> Moment:
        calls = self.lookups.calls()
        now = time.time()
        started = self.visits.started
        return Moment(
            latency_ms=self.latency_ms,
            passed=now - started,
            total=until - started,
            looks=tuple(
                self._look(runner, calls.get(runner.system, {}), min(since, now - 2), now)
                for runner in self.runners
            ),
        )

    def _look(self, runner: _Runner, calls: dict[str, int], since: float, now: float) -> Look:
        tally = runner.tally
        return Look(
            system=runner.system,
            events_per_second=slope(tally.commits, since, now),
            in_flight=calls.get("most", 0),
            waiting=max(0, self.visits.arrived - tally.finished - calls.get("open", 0)),
            slowest=tuple(nlargest(_SLOWEST, tally.slowest.items(), key=itemgetter(1))),
        )

    def _due(self, now: float) -> float:
        """Give the visits that who keeps up has finished: all but those of the last moments."""
        late = self.job.settling(self.latency_ms)
        return self.job.rate * (now - self.visits.started - late)

    def _row(self, runner: _Runner, since: float, until: float) -> Row:
        tally = runner.tally
        if not any(since <= commit.time <= until for commit in tally.commits):
            raise DemoFailed(
                f"{runner.system} wrote nothing in {until - since:.0f} s at {self.latency_ms} ms: "
                "this machine is too busy; give it longer with --seconds"
            )
        steady = in_step(tally.commits, since, until, self._due)
        return Row(
            system=runner.system,
            latency_ms=self.latency_ms,
            events_per_second=round(slope(tally.commits, steady, until), 1),
            p50_ms=round(percentile(tally.latencies, 0.5) * 1000, 1),
            p99_ms=round(percentile(tally.latencies, 0.99) * 1000, 1),
            order_violations=tally.violations,
        )
