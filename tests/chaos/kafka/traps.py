"""Traps: points of a job at which a process is killed, each sprung exactly once.

A trap is a file. It is armed from outside while the job runs, and names the point, the processes
to kill and how many passes of the point to let go by. Whoever passes the point takes the file by
renaming it, which only one can, and kills. So a kill is where it is meant to be, and whether it
has happened can be seen.
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
from pyspark.sql.types import StructType

from thulawa.brokers.kafka.transactions import SinkSpec
from thulawa.spark.connectors.kafka_sink import Committed, KafkaFormat, KafkaStreamWriter
from thulawa.spark.micro_batch import restoring, stages

__all__ = ["POINTS", "STARTING_POINTS", "STATE_POINTS", "Point", "Traps", "trap_state", "trapped"]

Point: TypeAlias = Literal[
    "offset log",  # Spark has written its offsets; the sink has claimed nothing
    "mid batch",  # a part of the records is on the broker, in an open transaction
    "one committed",  # a task's transaction is committed, the batch is not
    "all committed",  # Kafka has all of the batch, Spark has not written its commit
    "state half written",  # a task is handing its changes to Spark's state store
    "state commit",  # a task's state is stored, its transaction is open
    "restore",  # a task is reading its state after a start
    "rebuild",  # the checkpoint is lost, and a task is reading its changelog
]
POINTS: tuple[Point, ...] = get_args(Point)
STARTING_POINTS: tuple[Point, ...] = ("restore", "rebuild")
STATE_POINTS: tuple[Point, ...] = ("state half written", "state commit", *STARTING_POINTS)

SELF = 0  # stands for the process that passes the point


@dataclass(frozen=True, slots=True)
class Traps:
    """The trap of a job, in a folder; travels to workers by its path."""

    folder: Path

    def arm(self, point: Point, victims: list[int], passes: int = 0) -> None:
        """Have these processes killed at the point; a negative number is a process group."""
        for old in self.folder.glob("*"):
            old.unlink(missing_ok=True)  # a job may be passing at this moment
        text = json.dumps({"point": point, "victims": victims, "passes": passes})
        (self.folder / "new").write_text(text, encoding="ascii")
        (self.folder / "new").rename(self.folder / "armed")

    @property
    def sprung(self) -> bool:
        """Tell whether the kill has happened."""
        return (self.folder / "sprung").exists()

    def passed(self, point: Point, *, pause: float = 0.0) -> None:
        """Say that the job is at a point; does not return where the caller is a victim."""
        armed = self.folder / "armed"
        try:
            trap = json.loads(armed.read_text(encoding="ascii"))
        except FileNotFoundError:
            return
        if trap["point"] != point or self._pass_number() != trap["passes"]:
            return
        try:
            armed.rename(self.folder / "sprung")
        except FileNotFoundError:  # another process was here first
            return
        time.sleep(pause)
        _kill(trap["victims"])

    def _pass_number(self) -> int:
        for number in count():
            with suppress(FileExistsError):
                (self.folder / f"pass-{number}").touch(exist_ok=False)
                return number
        raise AssertionError


def _kill(victims: list[int]) -> None:
    for victim in sorted(victims, key=lambda pid: pid == SELF):  # oneself last
        with suppress(ProcessLookupError):
            if victim < 0:
                os.killpg(-victim, signal.SIGKILL)
            else:
                os.kill(victim or os.getpid(), signal.SIGKILL)


def trapped(writer: Any, spark: SparkSession, traps: Traps) -> Any:
    """Give a writer of `kafka_sink` traps at its steps."""
    spark.dataSource.register(_TrappedFormat)  # in the place of the real one
    return writer.option("traps", str(traps.folder))


class _TrappedFormat(KafkaFormat):
    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: FBT001, N802
        traps = self.options.pop("traps")  # the format has no such option
        made = super().streamWriter(schema, overwrite)
        return _TrappedWriter(made._sink, made._topic, made._layout, Traps(Path(traps)))


class _TrappedWriter(KafkaStreamWriter):
    def __init__(self, sink: SinkSpec, topic: str | None, layout: str, traps: Traps) -> None:
        super().__init__(sink, topic, layout)
        self._traps = traps

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        self._traps.passed("offset log")
        committed = super().write(self._watched(iterator))
        self._traps.passed("one committed")
        return committed

    def _watched(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            # the producer sends what it was given: a part of the batch is on the broker
            self._traps.passed("mid batch", pause=0.3)
        # what feeds the sink has ended, and Spark has committed the state of this task before that
        self._traps.passed("state commit")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 Spark's name
        self._traps.passed("all committed")
        super().commit(messages, batchId)


@dataclass(frozen=True, slots=True)
class _TrappedState:
    """A task's part of Spark's state, with traps where it is read and written."""

    kept: Any
    traps: Traps

    def get(self, name: str) -> bytes | None:
        # the first thing read is the table of contents: by the second, the state is half read
        if name != "meta":
            self.traps.passed("restore")
        found: bytes | None = self.kept.get(name)
        return found

    def put(self, name: str, data: bytes) -> None:
        self.kept.put(name, data)
        self.traps.passed("state half written")

    def remove(self, name: str) -> None:
        self.kept.remove(name)


def trap_state(traps: Traps) -> None:
    """Put traps at a worker's reading and writing of state; once is enough."""
    real = stages._State
    if getattr(real, "trapped", False):
        return

    def made(state: Any, prefix: str) -> _TrappedState:
        return _TrappedState(real(state, prefix), traps)

    made.trapped = True  # type: ignore[attr-defined]
    stages._State = made  # type: ignore[assignment,misc]
    take = restoring.RestoringTask._apply

    def taken(self: restoring.RestoringTask, *arguments: Any) -> restoring.RestoreReport:
        report = take(self, *arguments)
        traps.passed("rebuild")  # the records are in the store, and none of it is kept
        return report

    restoring.RestoringTask._apply = taken  # type: ignore[assignment,method-assign]
