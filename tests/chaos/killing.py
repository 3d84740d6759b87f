"""Kill a Streams application on the embedded log, and compare what it leaves with the model."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.application import CHECKPOINT, STORES
from tests.chaos.harness import (
    CLEAN,
    Child,
    Row,
    Stuck,
    Verdict,
    compare,
    process_table,
    verdict_row,
    wait_until,
)
from tests.chaos.model import Batch, Model, Output, expected
from tests.chaos.workload import PARTITIONS, TOPICS, Workload
from thulawa.brokers.embedded import Log
from thulawa.spark.micro_batch.checkpoint import Checkpoint

__all__ = ["Run", "store_row", "topic_row"]

_TIMEOUT = 600.0  # seconds; a machine may be busy
_TO_THE_END = 2_000.0
_OLDER = "the checkpoint is older than what its sink has written"
_EARLY = 0.2  # share of the kills that come before the first commit of a driver


@dataclass(slots=True)
class _Pace:
    """How fast this machine is, in seconds, so that kills hit a micro-batch in progress."""

    start: float = 15.0  # from the start of a driver to its first commit
    batch: float = 1.0  # from one commit to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run in a folder of its own; ``progress`` is called with a line for each kill."""

    folder: Path
    workload: Workload
    kills: int = 2
    master: str = "local[2]"
    progress: Callable[[str], None] = lambda _: None
    _pace: _Pace = field(default_factory=_Pace)

    def kill_drivers(self) -> Iterator[Row]:
        """Kill the driver again and again, start it with an older checkpoint, run to the end.

        A copy of the checkpoint is made after the first kill, and put back after the last one.
        The application must reject it, and continue with the newest. Yield a row for each output
        and store.
        """
        if self.kills < 2:
            raise ValueError("an older checkpoint takes at least 2 kills")
        draw = random.Random(self.workload.seed)
        waves = self.workload.waves(self.kills + 2)
        checkpoint, older, newest = (self.folder / name for name in (CHECKPOINT, "older", "newest"))
        with Log(self._address) as log:
            self.workload.create_topics(log)
            log.append(next(waves))
            minimum = 1
            for kill in range(1, self.kills + 1):
                log.append(next(waves))
                self._run_and_kill(draw, minimum, kill)
                if kill == 1:
                    shutil.copytree(checkpoint, older)
                    # the copy may run its next micro-batch once more: that is no older checkpoint
                    minimum = self._commits() + 2
            log.append(next(waves))
            checkpoint.rename(newest)
            older.rename(checkpoint)
            rejected = self._is_rejected()
            shutil.rmtree(checkpoint)
            newest.rename(checkpoint)
            self._run_to_the_end()
            yield rejected
            yield from self._rows(log)

    def kill_an_executor(self) -> Iterator[Row]:
        """Kill an executor of a cluster after the first micro-batch; yield the rows."""
        with Log(self._address) as log:
            self.workload.create_topics(log)
            log.append(self.workload.topics())
            driver = self._start("--to-the-end")
            try:
                self._await_commits(driver, 1)
                victim, *others = _executors(driver.pid)
                assert others, "the cluster has one executor only"
                os.kill(victim, signal.SIGKILL)
                before = self._commits()
                self._await_success(driver)
            finally:
                driver.kill()
            assert self._commits() > before, "no records were left when the executor was killed"
            yield from self._rows(log)

    @property
    def _address(self) -> str:
        return f"file:{self.folder / 'topics'}"

    def _commits(self) -> int:
        return Checkpoint(str(self.folder / CHECKPOINT)).last_batch() + 1

    def _start(self, *options: str) -> Child:
        # each wave has at least two micro-batches
        max_records = max(50, self.workload.records // (2 * self.kills + 4))
        return Child(
            "tests.chaos.application", str(self.folder), "--max-records", str(max_records),
            "--master", self.master, *options, log=self.folder / "driver.log",
        )  # fmt: skip

    def _await_commits(self, driver: Child, minimum: int, timeout: float = _TIMEOUT) -> None:
        wait_until(
            lambda: self._commits() >= minimum,
            driver.check_running,
            timeout=timeout,
            state=lambda: f"{self._commits()} micro-batches: {driver.output()[-3_000:]}",
        )

    def _run_and_kill(self, draw: random.Random, minimum: int, kill: int) -> None:
        """Kill a driver during a micro-batch, or, if ``minimum`` is reached, also before."""
        before, started, pace = self._commits(), time.monotonic(), self._pace
        driver = self._start()
        try:
            if before >= minimum and draw.random() < _EARLY:
                self._watch(driver, draw.uniform(0, pace.start))
            else:
                self._await_commits(driver, max(minimum, before + 1))
                first, committed = self._commits(), time.monotonic()
                pace.start = committed - started
                self._watch(driver, draw.uniform(0, 2 * pace.batch))
                if more := self._commits() - first:
                    pace.batch = (time.monotonic() - committed) / more
        finally:
            driver.kill()
        self.progress(
            f"kill {kill} of {self.kills} after {time.monotonic() - started:.1f} s, "
            f"{self._commits() - before} micro-batches"
        )

    def _watch(self, driver: Child, seconds: float) -> None:
        """Run a driver for a while; raise `Stuck` if it ends by itself."""
        deadline = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > deadline, driver.check_running, timeout=_TIMEOUT)

    def _run_to_the_end(self) -> None:
        driver = self._start("--to-the-end")
        try:
            self._await_success(driver)
        finally:
            driver.kill()

    def _await_success(self, driver: Child) -> None:
        if driver.wait(_TO_THE_END) != 0:
            raise Stuck(f"exit code {driver.exit_code}: {driver.output()[-3_000:]}")

    def _is_rejected(self) -> Row:
        """Start a driver, which must fail because of the age of its checkpoint."""
        driver = self._start("--to-the-end")
        try:
            failed = driver.wait(_TIMEOUT) not in (0, None)
        finally:
            driver.kill()
        if failed and _OLDER in driver.output():
            return _row("older checkpoint", 1, CLEAN)
        return _row("older checkpoint", 1, Verdict(wrong=1), driver.output()[-500:])

    def _rows(self, log: Log) -> Iterator[Row]:
        model = self._model(log)
        stores = json.loads((self.folder / STORES).read_text(encoding="utf-8"))
        for name, entries in model.stores().items():
            yield store_row(name, entries, stores[name])
        for topic, output in model.outputs.items():
            yield topic_row(topic, output, _read(log, topic))
        # records of several partitions are counted in any order: only the counts are known
        counted = {key: [(count, 0) for count, _ in records] for key, records in
                   _read(log, "item-counts").items()}  # fmt: skip
        counts = {key: [(one + 1, 0) for one in range(n)] for key, n in model.per_item.items()}
        yield topic_row("item-counts", counts, counted)

    def _model(self, log: Log) -> Model:
        topics = {
            topic: [list(log.read(topic, number, 0)) for number in range(PARTITIONS)]
            for topic in TOPICS
        }
        written = {topic: sum(map(len, parts)) for topic, parts in topics.items()}
        generated = {topic: len(records) for topic, records in self.workload.topics().items()}
        assert written == generated, "the input topics are not complete"
        return expected(topics, self._batches())

    def _batches(self) -> Iterator[Batch]:
        checkpoint = Checkpoint(str(self.folder / CHECKPOINT))
        for number in range(self._commits()):
            yield Batch(checkpoint.offsets_of(number), checkpoint.unread_after(number))


def _executors(driver: int) -> list[int]:
    """Return the process ids of a cluster's executors: JVMs that the driver's JVM has started."""
    table = process_table()
    return [
        pid
        for pid, (parent, _, command) in table.items()
        if command == "java" and parent in table and table[parent].parent == driver
    ]


def _read(log: Log, topic: str) -> Output:
    """Return values and timestamps of a topic by key, each partition in offset order."""
    output: Output = {}
    for partition in log.end_offsets(topic):
        for record in log.read(topic, partition, 0):
            value = None if record.value is None else json.loads(record.value)
            output.setdefault((record.key or b"").decode(), []).append((value, record.timestamp))
    return output


def store_row(name: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
    """Compare the entries of a store."""
    verdict = Verdict(wrong=len(_differing(wanted, found)))
    return _row(f"store {name}", len(wanted), verdict, _example(wanted, found))


def topic_row(topic: str, wanted: Output, found: Output) -> Row:
    """Compare the records of a topic; one is its key, its value as JSON and its timestamp."""
    records = [
        {key: [(key, json.dumps(value), time) for value, time in values] for key, values in
         output.items()}
        for output in (wanted, found)
    ]  # fmt: skip
    verdict = compare((one for values in records[0].values() for one in values), records[1])
    return _row(topic, sum(map(len, wanted.values())), verdict, _example(wanted, found))


def _row(output: str, wanted: int, verdict: Verdict, example: str = "") -> Row:
    return verdict_row(verdict, output=output, expected=wanted) | {"example": example}


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [key for key in {*wanted, *found} if wanted.get(key) != found.get(key)]


def _example(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Describe the first key whose values differ; empty if none does."""
    key = min(_differing(wanted, found), default=None)
    return "" if key is None else f"{key}: expected {wanted.get(key)}, found {found.get(key)}"
