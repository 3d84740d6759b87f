"""Run the application, kill it again and again, and hold what it leaves against the model."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.application import CHECKPOINT, STORES
from tests.chaos.model import Batch, Model, Output, expected
from tests.chaos.world import PARTITIONS, TOPICS, World
from thulawa.brokers.embedded import ConsumerRecord, Log
from thulawa.spark.micro_batch.checkpoint import Checkpoint

__all__ = ["Run"]

_ROOT = Path(__file__).parents[2]
_POLL = 0.02
_START = 600.0  # seconds until the first commit of a life; a machine may be busy
_OLDER = "the checkpoint is older than what its sink has written"
_EARLY = 0.2  # of the kills come before the first commit of their life


@dataclass(slots=True)
class _Pace:
    """How fast this machine is today, in seconds: kills are to hit what is under way."""

    start: float = 15.0  # from the start to the first commit
    batch: float = 3.0  # from one commit to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run in a folder of its own; ``say`` hears how it goes on."""

    folder: Path
    world: World
    kills: int
    master: str = "local[2]"
    say: Callable[[str], None] = lambda _: None

    def problems(self) -> list[str]:
        """Run to the end; say where the outcome is not the model's."""
        draw = random.Random(self.world.seed)
        waves = self.world.waves(self.kills + 1)
        with Log(self._address) as log:
            self.world.create(log)
            log.append(next(waves))
            pace = _Pace()
            for kill, wave in enumerate(waves, 1):
                log.append(wave)
                began, before = time.monotonic(), self._commits()
                self._life(draw, pace)
                self.say(
                    f"kill {kill} of {self.kills} after {time.monotonic() - began:.1f} s, "
                    f"{self._commits() - before} batches"
                )
            self._last_life()
            return list(_differences(self._model(log), log, self._stores()))

    def problems_after_a_lost_worker(self) -> list[str]:
        """Run to the end on a cluster, and kill one of its workers in the middle."""
        with Log(self._address) as log:
            self.world.create(log)
            log.append(self.world.topics())
            driver = self._started("--to-the-end")
            try:
                while self._commits() == 0:
                    self._check_alive(driver)
                    time.sleep(_POLL)
                victim, *others = _executors(driver.pid)
                assert others, "there is but one worker"
                os.kill(victim, signal.SIGKILL)
                before = self._commits()
                assert driver.wait() == 0, self._said()
            finally:
                _end(driver)
            assert self._commits() > before, "nothing was left to do when the worker was killed"
            return list(_differences(self._model(log), log, self._stores()))

    def problems_after_an_older_checkpoint(self) -> list[str]:
        """Put an older checkpoint back: it must be refused, and the newest one go on."""
        now, older, newest = (self.folder / name for name in (CHECKPOINT, "older", "newest"))
        first, second, third = self.world.waves(3)
        with Log(self._address) as log:
            self.world.create(log)
            log.append(first)
            self._last_life()
            shutil.copytree(now, older)
            log.append(second)
            self._last_life()
            now.rename(newest)
            older.rename(now)
            log.append(third)
            refusal = self._failed_life()
            shutil.rmtree(now)
            newest.rename(now)
            self._last_life()
            problems = list(_differences(self._model(log), log, self._stores()))
        if _OLDER not in refusal:
            problems.append(f"the older checkpoint was not refused for its age: {refusal[-500:]}")
        return problems

    @property
    def _address(self) -> str:
        return f"file:{self.folder / 'topics'}"

    def _commits(self) -> int:
        return Checkpoint(str(self.folder / CHECKPOINT)).last_batch() + 1

    def _command(self, *more: str) -> list[str]:
        most = max(50, self.world.records // (2 * self.kills + 2))
        program = [sys.executable, "-m", "tests.chaos.application", str(self.folder)]
        return [*program, "--max-records", str(most), "--master", self.master, *more]

    def _started(self, *more: str) -> subprocess.Popen[bytes]:
        with (self.folder / "stderr").open("ab") as errors:
            return subprocess.Popen(
                self._command(*more),
                cwd=_ROOT,
                stderr=errors,
                start_new_session=True,
            )

    def _life(self, draw: random.Random, pace: "_Pace") -> None:
        """Start the application and kill it, in the middle of a batch or on the way to one."""
        before, started = self._commits(), time.monotonic()
        driver = self._started()
        try:
            early = before > 0 and draw.random() < _EARLY
            deadline = started + (draw.uniform(0, pace.start) if early else _START)
            while self._commits() == before and time.monotonic() < deadline:
                self._check_alive(driver)
                time.sleep(_POLL)
            if self._commits() == before and not early:
                raise TimeoutError(f"no batch in {_START} s: {self._said()}")
            if early:
                return
            first, began = self._commits(), time.monotonic()
            pace.start = began - started
            deadline = began + draw.uniform(0, 2 * pace.batch)
            while time.monotonic() < deadline:
                self._check_alive(driver)
                time.sleep(_POLL)
            if more := self._commits() - first:
                pace.batch = (time.monotonic() - began) / more
        finally:
            _end(driver)

    def _check_alive(self, driver: subprocess.Popen[bytes]) -> None:
        if driver.poll() is not None:
            raise AssertionError(f"the application ended by itself: {self._said()}")

    def _failed_life(self) -> str:
        """Start the application, which must end with an error; return what it said."""
        said = len(self._said(None))
        driver = self._started("--to-the-end")
        try:
            if driver.wait() == 0:
                return "it ran to its end"
        finally:
            _end(driver)
        return self._said(None)[said:]

    def _last_life(self) -> None:
        driver = self._started("--to-the-end")
        try:
            if driver.wait() != 0:
                raise AssertionError(f"the last life failed: {self._said()}")
        finally:
            _end(driver)

    def _said(self, last: int | None = 3_000) -> str:
        said = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return said if last is None else said[-last:]

    def _stores(self) -> dict[str, dict[str, int]]:
        stores: dict[str, dict[str, int]] = json.loads(
            (self.folder / STORES).read_text(encoding="utf-8")
        )
        return stores

    def _model(self, log: Log) -> Model:
        topics = {
            topic: [list(log.read(topic, number, 0)) for number in range(PARTITIONS)]
            for topic in TOPICS
        }
        written = {topic: sum(map(len, parts)) for topic, parts in topics.items()}
        made = {topic: len(records) for topic, records in self.world.topics().items()}
        assert written == made, "the inputs themselves were not written whole"
        return expected(topics, self._batches())

    def _batches(self) -> Iterator[Batch]:
        checkpoint = Checkpoint(str(self.folder / CHECKPOINT))
        for number in range(self._commits()):
            yield Batch(checkpoint.offsets_of(number), checkpoint.unread_after(number))


def _end(driver: subprocess.Popen[bytes]) -> None:
    """Kill the driver and its JVM, if they still run."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _executors(driver: int) -> list[int]:
    """Give the processes of a cluster's workers: children of the driver's JVM."""
    parents: dict[int, int] = {}
    executors = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid = int(stat.parent.name)
            parents[pid] = int(stat.read_text().rpartition(")")[2].split()[1])
            if b"CoarseGrainedExecutorBackend" in (stat.parent / "cmdline").read_bytes():
                executors.append(pid)
        except OSError:  # it has ended meanwhile
            continue
    return [pid for pid in executors if parents.get(parents[pid]) == driver]


def _differences(model: Model, log: Log, stores: dict[str, dict[str, int]]) -> Iterator[str]:
    kept = {
        "per-item": model.per_item,
        "per-window": model.per_window,
        "profiles": model.profiles,
    }
    for name, wanted in kept.items():
        yield from _unlike(f"store {name}", wanted, stores[name])
    for topic, output in model.outputs.items():
        yield from _unlike(topic, output, _read(log, topic))
    # records of several partitions meet behind the shuffle, in any order: counts go up by one
    counts = {
        key: [value for value, _ in pairs] for key, pairs in _read(log, "item-counts").items()
    }
    steps = {key: list(range(1, count + 1)) for key, count in model.per_item.items()}
    yield from _unlike("item-counts", steps, counts)


def _read(log: Log, topic: str) -> Output:
    output: Output = defaultdict(list)
    for partition in log.end_offsets(topic):
        for record in log.read(topic, partition, 0):
            key, value = _decoded(record)
            output[key].append((value, record.timestamp))
    return output


def _decoded(record: ConsumerRecord) -> tuple[str, Any]:
    assert record.key is not None
    return record.key.decode(), None if record.value is None else json.loads(record.value)


def _unlike(name: str, wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    wrong = [key for key in {*wanted, *found} if wanted.get(key) != found.get(key)]
    if wrong:
        key = min(wrong)
        yield (
            f"{name}: {len(wrong)} of {len(wanted)} keys differ; "
            f"{key}: wanted {wanted.get(key)}, found {found.get(key)}"
        )
