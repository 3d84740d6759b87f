"""The query of an application: started from its checkpoint, watched, stopped."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from thulawa.core.fetching import FetchControl, Fetching
from thulawa.spark.log_source import of_topics
from thulawa.spark.read_limits import set_read_limit
from thulawa.spark.streams.logs import Topics
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.query import compile_program
from thulawa.spark.streams.records import Checkpoint
from thulawa.spark.streams.sharing import pool_of
from thulawa.spark.streams.watching import Watcher

__all__ = ["StreamsQuery", "active", "own_session"]

_TIMER_TRIGGER = 100  # ms between batches that only look at the clock
# What a batch costs when it has little to do is what these spare.
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # tasks keep their place after the last shuffle
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**24),  # a row is up to a megabyte
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


class StreamsQuery:
    """A running query in a session of its own (`own_session`)."""

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        topics: Topics,
        checkpoint: Checkpoint,
        *,
        max_records: int | Fetching | None,
        trigger: int | None,
        weight: int,
    ) -> None:
        control = FetchControl(max_records) if isinstance(max_records, Fetching) else None
        most = max_records if not isinstance(max_records, Fetching) else max_records.first
        self.topics = program.topics
        if program.has_timers:
            topics.tick(program.clock_topic)
        rows = compile_program(program, topics.read(spark, self.topics, most))
        writer = topics.write(rows, program.application_id).queryName(program.application_id)
        writer = writer.option("checkpointLocation", checkpoint.query_path)
        if trigger is None and program.has_timers:
            trigger = _TIMER_TRIGGER
        if trigger is not None:
            writer = writer.trigger(processingTime=f"{trigger} milliseconds")
        with active(spark), pool_of(spark, program.application_id, weight):
            self._query = topics.start(writer)
        self._checkpoint = checkpoint
        self._spark, self._topics, self._name = spark, topics, program.application_id
        self.watcher = Watcher(
            program.application_id,
            self._query.id,
            control,
            lambda limit: set_read_limit(spark, self._query, limit),
        )
        self._listeners = [self.watcher, *topics.listeners(program.application_id, self._query.id)]
        for listener in self._listeners:
            spark.streams.addListener(listener)

    def progress(self) -> list[dict[str, Any]]:
        """Give Spark's reports of the last batches, each with the number of its ``records``.

        Its rows are no measure: in one travels what the log has stored as one batch.
        """
        return [_counted(json.loads(one.json)) for one in self._query.recentProgress]

    def committed_offsets(self) -> dict[str, dict[int, int]]:
        """Give how far the last committed batch has read."""
        return self._checkpoint.committed_offsets()

    def wait(self) -> Exception | None:
        """Wait for the query's end; give the error that ended it."""
        try:
            self._query.awaitTermination()
        except StreamingQueryException as error:
            return error
        finally:
            while self._listeners:
                self._spark.streams.removeListener(self._listeners.pop())
            self._topics.commit(self._name, self.committed_offsets())
        return None

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def _counted(report: dict[str, Any]) -> dict[str, Any]:
    records = 0
    for source in report["sources"]:
        start, end = source["startOffset"] or {}, source["endOffset"] or {}
        for topic, partitions in of_topics(end).items():
            begun = start.get(topic, {})
            records += sum(upto - begun.get(number, 0) for number, upto in partitions.items())
    return report | {"records": records}
