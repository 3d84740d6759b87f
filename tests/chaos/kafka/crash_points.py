"""Crash points: steps of a job at which processes are killed, each kill exactly once.

A crash point is armed with a file while the job runs. The file names the point, the processes to
kill and how often the job may pass the point before. The process that reaches the point renames
the file, which succeeds in one process only, and kills. So a kill hits the step it is meant for,
and others can see whether it has happened.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.spark.connectors.kafka_sink import KafkaFormat, KafkaStreamWriter
from thulawa.spark.micro_batch import stages, task_host

__all__ = [
    "POINTS",
    "SELF",
    "STARTING_POINTS",
    "STATE_POINTS",
    "CrashPoints",
    "Point",
    "add_sink_points",
    "add_state_points",
]

Point: TypeAlias = Literal[
    "offset log",  # Spark has written its offset log, the sink nothing
    "mid batch",  # the broker has a part of the records, in an open transaction
    "one committed",  # the transaction of one task is committed, the micro-batch is not
    "all committed",  # all transactions are committed, Spark's commit log is not written
    "state half written",  # a task is writing its changes to Spark's state store
    "state commit",  # the state of a task is stored, its transaction is open
    "restore",  # a task is reading its state after a start
    "rebuild",  # the checkpoint is lost, and a task is reading its changelog
]
POINTS: tuple[Point, ...] = get_args(Point)
STARTING_POINTS: tuple[Point, ...] = ("restore", "rebuild")
STATE_POINTS: tuple[Point, ...] = ("state half written", "state commit", *STARTING_POINTS)

SELF = 0  # instead of a process id: the process that reaches the point


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """The crash points of a job, of which one at a time is armed; workers share the folder."""

    folder: Path

    def arm(self, point: Point, victims: list[int], passes: int = 0) -> None:
        """Kill these processes at the point; a negative number is a process group."""
        for old in self.folder.glob("*"):
            old.unlink(missing_ok=True)  # the job may rename a file at this moment
        text = json.dumps({"point": point, "victims": victims, "passes": passes})
        (self.folder / "new").write_text(text, encoding="ascii")
        (self.folder / "new").rename(self.folder / "armed")

    @property
    def fired(self) -> bool:
        """Whether the kill has happened."""
        return (self.folder / "fired").exists()

    def reach(self, point: Point, *, pause: float = 0.0) -> None:
        """Kill the victims if the point is armed; does not return if the caller is one."""
        armed = self.folder / "armed"
        try:
            crash = json.loads(armed.read_text(encoding="ascii"))
        except FileNotFoundError:
            return
        if crash["point"] != point or self._pass_number() != crash["passes"]:
            return
        try:
            armed.rename(self.folder / "fired")
        except FileNotFoundError:  # another process was faster
            return
        time.sleep(pause)
        _kill(crash["victims"])

    def _pass_number(self) -> int:
        for number in count():
            with suppress(FileExistsError):
                (self.folder / f"pass-{number}").touch(exist_ok=False)
                return number
        raise AssertionError


def _kill(victims: list[int]) -> None:
    for victim in sorted(victims, key=lambda pid: pid == SELF):  # this process last
        with suppress(ProcessLookupError):
            if victim < 0:
                os.killpg(-victim, signal.SIGKILL)
            else:
                os.kill(victim or os.getpid(), signal.SIGKILL)


def add_sink_points(writer: Any, spark: SparkSession, points: CrashPoints) -> Any:
    """Return the writer of a Kafka sink with crash points at its steps."""
    spark.dataSource.register(_CrashingFormat)  # replaces the real format
    return writer.option("crashPoints", str(points.folder))


class _CrashingFormat(KafkaFormat):
    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: FBT001, N802
        folder = self.options.pop("crashPoints")  # unknown to the real format
        made = super().streamWriter(schema, overwrite)
        return _CrashingWriter(made._sink, made._topic, made._layout, CrashPoints(Path(folder)))


class _CrashingWriter(KafkaStreamWriter):
    def __init__(self, sink: SinkSpec, topic: str | None, layout: str, points: CrashPoints) -> None:
        super().__init__(sink, topic, layout)
        self._points = points

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._points.reach("offset log")
        committed = super().write(self._watched(iterator))
        self._points.reach("one committed")
        return committed

    def _watched(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            # the producer sends in the background: a part of the batch is on the broker then
            self._points.reach("mid batch", pause=0.3)
        # Spark commits the state of a task before it ends the input of the sink
        self._points.reach("state commit")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 Spark's name
        self._points.reach("all committed")
        super().commit(messages, batchId)


@dataclass(frozen=True, slots=True)
class _CrashingState:
    """The state of a task in Spark's state store, with crash points at reads and writes."""

    state: Any
    points: CrashPoints

    def get(self, name: str) -> bytes | None:
        # "meta" is read first: at the next read, the state is half read
        if name != "meta":
            self.points.reach("restore")
        found: bytes | None = self.state.get(name)
        return found

    def put(self, name: str, data: bytes) -> None:
        self.state.put(name, data)
        self.points.reach("state half written")

    def remove(self, name: str) -> None:
        self.state.remove(name)


def add_state_points(points: CrashPoints) -> None:
    """Add crash points to the state of all tasks of this worker; idempotent."""
    real = stages._State
    if getattr(real, "has_crash_points", False):
        return

    def made(state: Any, prefix: str) -> _CrashingState:
        return _CrashingState(real(state, prefix), points)

    made.has_crash_points = True  # type: ignore[attr-defined]
    stages._State = made  # type: ignore[assignment,misc]
    take = task_host.RestoringTask._apply

    def taken(self: task_host.RestoringTask, *arguments: Any) -> task_host.RestoreReport:
        report = take(self, *arguments)
        points.reach("rebuild")  # the records are in the store, and nothing is committed
        return report

    task_host.RestoringTask._apply = taken  # type: ignore[assignment,method-assign]
