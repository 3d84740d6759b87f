"""The query of an application: started from its checkpoint, watched, stopped."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import repeat
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from thulawa.core.types import Offsets
from thulawa.runtime.batch_size import FetchControl, Fetching
from thulawa.spark.connectors.read_limits import set_read_limit
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.dropped_records import CountReport
from thulawa.spark.micro_batch.failures import failure_of
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.progress import Fetches, FetchStatistics, records_between
from thulawa.spark.micro_batch.query import compile_program
from thulawa.spark.micro_batch.scheduler_pools import pool_of
from thulawa.spark.session.worker_pools import Seat

__all__ = ["StreamsQuery", "active", "own_session"]

_log = logging.getLogger("thulawa.streams")
_LOOK_SECONDS = 0.5  # between looks at a running query
_DELETION_SECONDS = 30.0  # as Kafka Streams' repartition.purge.interval.ms
_DRAIN_LOOK_SECONDS = 0.02
_TIMER_TRIGGER = 100  # ms between batches that only look at the clock
# warns whenever a batch takes longer than that, as each does that has anything to do
_FALLING_BEHIND = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
# What a batch costs when it has little to do is what these spare.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",  # rows are few: little to gain, and code to compile
    "spark.sql.adaptive.enabled": "false",  # tasks keep their place after the last shuffle
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopActiveRunOnRestart": "false",  # whoever runs already goes on
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**24),  # a row is up to a megabyte
    # Hadoop starts a process to set the mode of each file it makes; checksums are files as well
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Let a session be the one of this thread: only there Spark looks for formats in Python."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]  # noqa: SLF001
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def own_session(spark: SparkSession, program: Program, settings: Mapping[str, str]) -> SparkSession:
    """Give a session for an application alone: settings are not the user's, formats are."""
    own = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001
    chosen = {"spark.sql.shuffle.partitions": str(len(program.slots)), **_SETTINGS, **settings}
    for name, value in chosen.items():
        own.conf.set(name, value)
    return own


def _silence(spark: SparkSession, logger: str) -> None:
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)


class StreamsQuery:
    """A running query in a session of its own (`own_session`)."""

    def __init__(  # noqa: PLR0913 options by name
        self,
        spark: SparkSession,
        program: Program,
        topics: Topics,
        checkpoint: Checkpoint,
        *,
        max_records: int | Fetching | None,
        trigger: int | None,
        weight: int,
        reports: Mapping[str, LaneReport],
        counts: CountReport | None = None,
    ) -> None:
        most = max_records.first if isinstance(max_records, Fetching) else max_records
        self.topics = program.topics
        if program.has_timers:
            topics.tick(program.clock_topic)
        if trigger is None and program.has_timers:
            trigger = _TIMER_TRIGGER
            _silence(spark, _FALLING_BEHIND)
        self._inner = program.inner_topics
        self._next_deletion = time.monotonic() + _DELETION_SECONDS
        self._name = program.application_id
        self._spark = spark
        self._checkpoint = checkpoint
        self._log = topics
        self._told: Offsets = {}
        self._failed_looks: set[str] = set()
        self._fetches: Fetches | None = None
        starts = {name: at for name, at in checkpoint.starts().items() if name in self.topics}
        read = partial(topics.read, spark, self.topics, most, starts=starts)
        with ExitStack() as unless_started:
            self._seat = Seat()
            unless_started.callback(self._seat.leave)
            rows = compile_program(program, read, f"streams {self._seat.number}", reports, counts)
            writer = topics.write(rows, self._name).queryName(self._name)
            writer = writer.option("checkpointLocation", checkpoint.query_path)
            if trigger is not None:
                writer = writer.trigger(processingTime=f"{trigger} milliseconds")
            with active(spark), pool_of(spark, self._name, weight):
                self._query = writer.start()
                unless_started.callback(self._query.stop)
            self._commit = topics.committer(self._name)
            if isinstance(max_records, Fetching):
                self._fetches = Fetches(
                    self._name,
                    FetchControl(max_records),
                    lambda limit: set_read_limit(spark, self._query, limit),
                )
            unless_started.pop_all()

    def progress(self) -> list[dict[str, Any]]:
        """Give Spark's reports of the last batches, each with the number of its ``records``.

        Its rows are no measure: in one travels what the log has stored as one batch.
        """
        return [_counted(json.loads(one.json)) for one in self._query.recentProgress]

    def committed_offsets(self) -> Offsets:
        """Give how far the last committed batch has read."""
        return self._checkpoint.committed_offsets()

    @property
    def has_more(self) -> bool:
        """Whether tasks may wait for records that the last committed batch has not read."""
        return self._checkpoint.has_more()

    def wait(self) -> Exception | None:
        """Wait for the query's end; give the error that ended it.

        A query that cannot be waited for is stopped: nobody would know when another may start.
        """
        try:
            with suppress(StreamingQueryException):  # is raised again below
                while not self._query.awaitTermination(_LOOK_SECONDS):
                    self._look("tell how far it is", self._tell)
                    self._look("size its batches", self._fetch)
                    self._look("delete records that it has read", self._delete_read)
            # a wait with a time limit is over when the query is told to stop, or has failed:
            # before it has let go of what it holds, and another with its id may start
            self._query.awaitTermination()
        except StreamingQueryException as error:
            return failure_of(error)
        except BaseException:
            with suppress(Exception):  # Spark itself may have gone
                self._query.stop()
            raise
        finally:
            self._seat.leave()
            self._look("tell how far it is", self._tell)
        return None

    def rounds(self) -> Iterator[tuple[str, ...]]:
        """Yield the topics that have to be read to their end, one round after the other.

        A record passes each repartition once at most: after the last round, whatever was in the
        topics before the first has left the application.
        """
        yield self.topics
        yield from repeat(self._inner, len(self._inner))

    @property
    def fetching(self) -> FetchStatistics | None:
        """How many records the next batch may take, and what binds; None: a fixed number."""
        return None if self._fetches is None else self._fetches.statistics

    def lag(self) -> Offsets:
        """Give how many records each partition holds that no committed batch has read."""
        done, starts = self.committed_offsets(), self._log.start_offsets(self.topics)
        return {
            topic: {
                number: max(
                    0, end - max(done.get(topic, {}).get(number, 0), starts[topic].get(number, 0))
                )
                for number, end in ends.items()
            }
            for topic, ends in self._log.end_offsets(self.topics).items()
        }

    def _look(self, what: str, look: Callable[[], None]) -> None:
        """Look at the query. That this fails is no end of it, and is said once."""
        try:
            look()
        except Exception:  # noqa: BLE001 whatever it is, the query is well
            if what not in self._failed_looks:
                _log.warning(
                    "could not %s, which ends no query: %s", what, self._name, exc_info=True
                )
            self._failed_looks.add(what)

    def _fetch(self) -> None:
        if self._fetches is not None:
            self._fetches.look(self._last_report())

    def _tell(self) -> None:
        """Tell others how far the query is."""
        batch = self._checkpoint.last_batch()
        offsets = self._checkpoint.offsets_of(batch)
        if offsets != self._told:
            self._commit(offsets, self._checkpoint.query or "", batch)
        self._told = offsets

    def _delete_read(self) -> None:
        """Delete what committed batches have read of inner topics: nobody reads it again."""
        if not self._inner or time.monotonic() < self._next_deletion:
            return
        self._next_deletion = time.monotonic() + _DELETION_SECONDS
        read = self.committed_offsets()
        self._log.delete_records({name: read[name] for name in self._inner if name in read})

    def _last_report(self) -> dict[str, Any] | None:
        report: Any = self._query._jsq.lastProgress()  # noqa: SLF001 Python's would make it over
        found: dict[str, Any] | None = None if report is None else json.loads(report.json())
        return found

    def drain(self, timeout: float) -> bool:
        """Read no further records; return whether no batch is at hand any more.

        Where Spark does not let the limit be changed, the next batch may begin before the stop,
        and leaves no trace.
        """
        deadline = time.monotonic() + timeout
        self._fetches = None  # it would set the limit again
        set_read_limit(self._spark, self._query, 0)
        while self._query.isActive and (
            self._query.status["isTriggerActive"] or self._checkpoint.batch_at_hand
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(_DRAIN_LOOK_SECONDS)
        return True

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def _counted(report: dict[str, Any]) -> dict[str, Any]:
    taken = records_between(report, "startOffset", "endOffset")
    return report | {"records": sum(sum(counts.values()) for counts in taken.values())}
