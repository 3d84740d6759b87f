"""The streaming query of an application: start it from its checkpoint, monitor and stop it."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from thulawa.core.types import Offsets
from thulawa.errors import BrokerError, ConfigurationError, QueryFailed
from thulawa.runtime.batch_size import AdaptiveBatchSize, BatchSizeEstimator, Binding
from thulawa.spark.connectors.offsets import of_topics
from thulawa.spark.internals import (
    active_session,
    add_scheduler_pool,
    clone_session,
    last_progress,
    set_read_limit,
    silence_logger,
)
from thulawa.spark.map_by_key.lane_report import LaneReport
from thulawa.spark.micro_batch.brokers import StreamsBroker
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.program_shipping import CountReport
from thulawa.spark.micro_batch.query import compile_program
from thulawa.spark.session.worker_pools import WorkerPoolSlot

_log = logging.getLogger("thulawa.streams")
_POLL_SECONDS = 0.5  # between checks of a running query
_DELETION_SECONDS = 30.0  # as Kafka Streams' repartition.purge.interval.ms
_DRAIN_POLL_SECONDS = 0.02
_POOL = "spark.scheduler.pool"
_TIMER_TRIGGER = 100  # ms between batches that only check timers
# warns about every batch that takes longer than the trigger interval, as most do
_FALLING_BEHIND = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
# These reduce the fixed cost of a micro-batch.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",  # few rows: compiling costs more than it saves
    "spark.sql.adaptive.enabled": "false",  # tasks keep their numbers after the last shuffle
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopActiveRunOnRestart": "false",  # a running query is not replaced
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**24),  # a row is up to a megabyte
    # Hadoop runs a process to set the mode of each file, and writes checksum files as well
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
# in Spark's errors
_BECAUSE = "The above exception was the direct cause of the following exception:"
_TRACEBACK = "Traceback (most recent call last):\n"
_NOISE = (" SQLSTATE", "\tat ", "Driver stacktrace:")  # that Spark adds after the error


def own_session(spark: SparkSession, program: Program, settings: Mapping[str, str]) -> SparkSession:
    """Return a session for one application, with its own settings and the user's formats."""
    own = clone_session(spark)
    chosen = {"spark.sql.shuffle.partitions": str(len(program.slots)), **_SETTINGS, **settings}
    for name, value in chosen.items():
        own.conf.set(name, value)
    return own


@contextmanager
def scheduler_pool(spark: SparkSession, application_id: str, weight: int) -> Iterator[None]:
    """Run the jobs that are started in this context in the application's scheduler pool.

    Pools share the cores by weight, however many jobs each has waiting; in a pool jobs run in
    order. Spark reads weights from a file when it starts and gives other pools the weight 1, so
    this creates the pool before its first job. Raise `ConfigurationError` for a weight other than 1
    in a session without the fair scheduler.
    """
    context = spark.sparkContext
    if context.getConf().get("spark.scheduler.mode", "FIFO").upper() != "FAIR":
        if weight != 1:
            raise ConfigurationError(
                f"weight={weight} needs a session with the fair scheduler: use thulawa.session(), "
                'or set "spark.scheduler.mode" to "FAIR" before the session starts'
            )
        yield
        return
    pool = f"{application_id} weight {weight}"
    add_scheduler_pool(spark, pool, weight)
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, pool)
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]  # None removes it


@dataclass(frozen=True, slots=True)
class BatchSizeStatistics:
    """The last micro-batch, the limit of the next one, and what determines the limit.

    ``fixed_seconds`` is the estimated fixed cost of a micro-batch.
    """

    limit: int
    binding: Binding
    records: int = 0
    seconds: float = 0.0
    fixed_seconds: float = 0.0


class BatchSizeController:
    """Sets the limit of the next micro-batches from the durations of earlier ones.

    ``set_limit`` returns whether the limit could be set. The thread that waits for the query's end
    polls Spark's reports: a listener would see every micro-batch, but costs dozens of calls between
    Python and Java each time.
    """

    def __init__(
        self, name: str, control: BatchSizeEstimator, set_limit: Callable[[int], bool]
    ) -> None:
        self._name = name
        self._control: BatchSizeEstimator | None = control
        self._set_limit = set_limit
        self._seen: int | None = None
        self.statistics = BatchSizeStatistics(control.limit, control.binding)

    def update(self, report: Mapping[str, Any] | None) -> None:
        """Process Spark's last report, unless it was processed before."""
        control = self._control
        if control is None or report is None or report["batchId"] == self._seen:
            return
        self._seen = report["batchId"]
        records = records_between(report, "startOffset", "endOffset")
        seconds = report["durationMs"].get("triggerExecution", 0) / 1_000
        more = records_between(report, "endOffset", "latestOffset") > 0
        before, limit = self.statistics.limit, control.batch(records, seconds, more=more)
        self.statistics = BatchSizeStatistics(
            limit, control.binding, records, seconds, control.fixed
        )
        if limit == before:
            return
        if not self._set_limit(limit):
            _log.warning("%s: this version of Spark does not let the limit change", self._name)
            self._control = None
            return
        took = f"{records} records took {seconds:.2f} s ({control.fixed:.2f} s fixed)"
        following = f"the next batch takes up to {limit}, {control.binding} binds"
        _log.info("%s: %s; %s", self._name, took, following)


def records_between(report: Mapping[str, Any], start: str, end: str) -> int:
    """Return the number of records between two offsets of a report, over all partitions.

    Spark reports rows, and a packed row holds many records.
    """
    return sum(
        max(0, upto - (source[start] or {}).get(topic, {}).get(number, 0))
        for source in report["sources"]
        for topic, partitions in of_topics(source[end] or {}).items()
        for number, upto in partitions.items()
    )


class StreamsQuery:
    """A running query in its own session (`own_session`)."""

    def __init__(  # noqa: PLR0913 options by name
        self,
        spark: SparkSession,
        program: Program,
        topics: StreamsBroker,
        checkpoint: Checkpoint,
        *,
        max_records: int | AdaptiveBatchSize | None,
        trigger: int | None,
        weight: int,
        reports: Mapping[str, LaneReport],
        counts: CountReport | None = None,
    ) -> None:
        most = max_records.first if isinstance(max_records, AdaptiveBatchSize) else max_records
        if program.has_timers:
            topics.put(program.clock_topic, None, None)  # Spark runs no micro-batch without input
        if trigger is None and program.has_timers:
            trigger = _TIMER_TRIGGER
            silence_logger(spark, _FALLING_BEHIND)
        self._internal_topics = program.internal_topics
        self._next_deletion = time.monotonic() + _DELETION_SECONDS
        self._name = program.application_id
        self._spark = spark
        self._checkpoint = checkpoint
        self._broker = topics.broker
        self._published: Offsets = {}
        self._failed_checks: set[str] = set()
        starts = {name: at for name, at in checkpoint.starts().items() if name in program.topics}
        with ExitStack() as unless_started:
            self._worker_slot = WorkerPoolSlot()
            unless_started.callback(self._worker_slot.release)
            reader = topics.reader(spark, program.topics, most, starts)
            workers = f"streams {self._worker_slot.number}"
            rows = compile_program(spark, program, reader, workers, reports, counts)
            writer = topics.write(rows, self._name).queryName(self._name)
            writer = writer.option("checkpointLocation", checkpoint.query_path)
            if trigger is not None:
                writer = writer.trigger(processingTime=f"{trigger} milliseconds")
            with active_session(spark), scheduler_pool(spark, self._name, weight):
                self._query = writer.start()
                unless_started.callback(self._query.stop)
            unless_started.pop_all()
        self._batch_size: BatchSizeController | None = None
        if isinstance(max_records, AdaptiveBatchSize):
            set_limit = partial(set_read_limit, spark, self._query)
            estimator = BatchSizeEstimator(max_records)
            self._batch_size = BatchSizeController(self._name, estimator, set_limit)

    def progress(self) -> list[dict[str, Any]]:
        """Return Spark's progress reports, each with the number of ``records`` that were read.

        Spark's own row counts say nothing, because a packed row holds many records.
        """
        reports = [json.loads(one.json) for one in self._query.recentProgress]
        return [
            report | {"records": records_between(report, "startOffset", "endOffset")}
            for report in reports
        ]

    def wait(self) -> Exception | None:
        """Wait for the query's end; return the error that ended it, or None.

        A query whose end cannot be awaited is stopped, because another must not start before.
        """
        try:
            with suppress(StreamingQueryException):  # is raised again below
                while not self._query.awaitTermination(_POLL_SECONDS):
                    self._attempt("publish its offsets", self._publish_offsets)
                    self._attempt("adapt the batch size", self._adapt_batch_size)
                    self._attempt("delete processed records", self._delete_processed)
            # A wait with a timeout returns as soon as the query is asked to stop or has failed,
            # before it has released its resources and another query with its id may start.
            self._query.awaitTermination()
        except StreamingQueryException as error:
            return failure_of(error)
        except BaseException:
            with suppress(Exception):  # Spark itself may have ended
                self._query.stop()
            raise
        finally:
            self._worker_slot.release()
            self._attempt("publish its offsets", self._publish_offsets)
        return None

    @property
    def batch_size(self) -> BatchSizeStatistics | None:
        """The limit of the next batch and what determines it; None if the limit is fixed."""
        return None if self._batch_size is None else self._batch_size.statistics

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run an action whose failure does not end the query, and is logged once."""
        try:
            action()
        except Exception:  # noqa: BLE001 the query itself has not failed
            if what not in self._failed_checks:
                _log.warning("%s could not %s; its query goes on", self._name, what, exc_info=True)
            self._failed_checks.add(what)

    def _adapt_batch_size(self) -> None:
        if self._batch_size is not None:
            self._batch_size.update(last_progress(self._query))

    def _publish_offsets(self) -> None:
        """Commit the offsets of the last batch to the consumer group, if there is one."""
        batch = self._checkpoint.last_batch()
        offsets = self._checkpoint.offsets_of(batch)
        if offsets != self._published:
            query = self._checkpoint.query or ""
            try:
                self._broker.commit(self._name, offsets, query=query, batch=batch)
            except BrokerError as error:  # not repeated: the next commit is newer
                _log.warning("the offsets of group %s are out of date: %s", self._name, error)
        self._published = offsets

    def _delete_processed(self) -> None:
        """Delete the records of repartition topics that committed batches have read."""
        if not self._internal_topics or time.monotonic() < self._next_deletion:
            return
        self._next_deletion = time.monotonic() + _DELETION_SECONDS
        read = self._checkpoint.committed_offsets()
        self._broker.delete_records(
            {name: read[name] for name in self._internal_topics if name in read}
        )

    def drain(self, timeout: float) -> bool:
        """Stop reading; return whether the current batch has committed within the timeout.

        If Spark does not allow the limit to change, another batch may begin before the stop, and
        leaves no trace.
        """
        deadline = time.monotonic() + timeout
        self._batch_size = None  # it would change the limit again
        set_read_limit(self._spark, self._query, 0)
        while self._query.isActive and (
            self._query.status["isTriggerActive"] or self._checkpoint.has_open_batch()
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(_DRAIN_POLL_SECONDS)
        return True

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def failure_of(error: Exception) -> QueryFailed:
    """Return a `QueryFailed` with a short message and Spark's error as its cause."""
    failure = QueryFailed(_message(error))
    failure.__cause__ = error
    return failure


def _message(error: Exception) -> str:
    """Return the error of the last traceback in Spark's text, and its direct cause."""
    text = str(error).partition("\n=== Streaming Query ===")[0]
    before, traceback, lines = text.rpartition(_TRACEBACK)
    if not traceback:
        return f"{type(error).__name__}: {text}"
    message = dropwhile(lambda line: line.startswith(" "), lines.splitlines())
    words = [line for line in message if not line.startswith(_NOISE)]
    cause, because, _ = before.rpartition(_BECAUSE)
    if _TRACEBACK in cause and not before[len(cause) + len(because) :].strip():
        words.append(f"caused by {cause.strip().splitlines()[-1]}")
    return "\n".join(words)
