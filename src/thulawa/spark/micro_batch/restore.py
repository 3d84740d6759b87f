"""Restore the checkpoint of an application from its topics: changelogs, offsets, markers.

A restore is a query over the changelogs with its own checkpoint. It has the stages of the program
but runs none of its operators. When all stores are restored and match their last positions, the
offsets of that checkpoint are replaced by those of the program's topics, and the program's query
continues from it as after any other batch.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from thulawa.brokers.port import read_to_end
from thulawa.core.markers import LastBatch
from thulawa.core.types import Offsets, TopicPartition
from thulawa.errors import StateError
from thulawa.runtime.recovery_plan import (
    Generation,
    Progress,
    RecoveryPlan,
    batch_stamp,
    recover,
)
from thulawa.spark.internals import active_session
from thulawa.spark.micro_batch.brokers import StreamsBroker, sink_writer
from thulawa.spark.micro_batch.changelog_output import MORE
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.manifest import publish_manifest
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.query import compile_program
from thulawa.spark.micro_batch.task_host import RestoreReport
from thulawa.state.store_changelog import Position

_log = logging.getLogger("thulawa.streams")
_GENERATION = b"generation"
_REPORTS = "reports"  # folder of the reports of tasks, in the folder of the query
_POLL_SECONDS = 0.5
_RECORDS = 200_000  # of changelogs per batch, which are held in memory


@dataclass(frozen=True, slots=True)
class Restoring:
    """Progress of a restore in offsets, including those that compaction removed."""

    records: int
    of: int


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """A restored store of one task: records that were read, and resulting entries."""

    store: str
    task: int
    records: int
    entries: int
    checksum: str


OnProgress: TypeAlias = Callable[[Restoring], None]
More: TypeAlias = Mapping[str, list[str]]


def check_changelogs(program: Program, topics: StreamsBroker, checkpoint: Checkpoint) -> None:
    """Raise `StateError` if both the checkpoint and a changelog are lost.

    Call it before topics are created, because a new changelog has no records either.
    """
    names = (program.offsets_topic, *program.changelogs.values())
    there = topics.broker.partitions(*names)
    lost = [name for name in names if name not in there]
    if not lost or program.offsets_topic not in there or checkpoint.query is not None:
        return
    if _read_offsets(program, topics).generation is not None:  # else the application has never run
        raise StateError(
            f"the checkpoint is lost, and the changelog {lost[0]!r} is gone; put one of them back, "
            "or discard the state with thulawa reset"
        )


def restore(
    spark: SparkSession,
    program: Program,
    topics: StreamsBroker,
    checkpoint: Checkpoint,
    on_progress: OnProgress | None = None,
) -> list[RestoredStore] | None:
    """Restore the checkpoint if it is lost; return None if it exists or there is no changelog.

    ``spark`` is the session of the program's query, with its settings.
    """
    generation, query = _read_offsets(program, topics).generation, checkpoint.query
    if generation is None:
        if query is None:
            query = str(uuid4())
            checkpoint.begin(query, restoring=False)
        _write_generation(topics, program, Generation(query, checkpoint.last_batch()))
        return None
    if query is None:
        return _Restore(spark, program, topics, checkpoint, on_progress).run()
    if generation.query != query:
        raise StateError(
            "the application has continued from another checkpoint since this one: its changelogs "
            "are ahead of it; remove this checkpoint, and the state is restored from them"
        )
    return None


@dataclass
class _Restore:
    _spark: SparkSession
    _program: Program
    _topics: StreamsBroker
    _checkpoint: Checkpoint
    _on_progress: OnProgress | None
    _read: int = 0  # records so far
    _all: int = 0

    def run(self) -> list[RestoredStore]:
        program, topics = self._program, self._topics
        names = (program.offsets_topic, *program.changelogs.values())
        topics.settle(program.application_id, *names)
        # read again: the transactions that were open have ended
        known = _read_offsets(program, topics)
        assert known.generation is not None
        markers = topics.last_batches(program.application_id, known.generation.query)
        todo = recover(known.generation, len(program.slots), markers, known.progress)
        query = str(uuid4())
        self._checkpoint.begin(query, restoring=True)
        reports = self._rebuild(todo, (*names, *program.plan.global_topics))
        found = [self._verified(reports[name]) for name in sorted(reports)]
        self._switch_to_program(query, todo, known.unread_after(markers))
        return found

    def _rebuild(
        self, todo: RecoveryPlan, names: tuple[str, ...]
    ) -> dict[tuple[str, int], RestoreReport]:
        """Run the restore's query; return the reports of its tasks, by store and task."""
        program, spark = self._program, self._spark
        ends = self._topics.broker.end_offsets(*names)
        self._all = sum(end for partitions in ends.values() for end in partitions.values())
        _log.info("%s: restoring %d stores", program.application_id, len(program.changelogs))
        restoring = replace(program, run=f"{program.run}-restore", recovery=todo)
        reader = self._topics.reader(spark, names, _RECORDS)
        rows = compile_program(spark, restoring, reader, "restoring")
        reports = Path(self._checkpoint.query_path) / _REPORTS
        # to files: foreachBatch would wait for a Python thread that another query may block
        writer = rows.select(col("data").cast("string")).writeStream.format("text")
        writer = writer.option("path", str(reports)).trigger(availableNow=True)
        with active_session(spark):
            query: Any = writer.option("checkpointLocation", self._checkpoint.query_path).start()
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                self._report_progress()
            query.awaitTermination()  # until it has released its files
        finally:
            query.stop()
        self._report_progress()
        read = self._checkpoint.committed_offsets()
        for topic, partitions in ends.items():
            for partition, end in partitions.items():
                if read.get(topic, {}).get(partition, 0) < end:
                    raise StateError(f"{topic} was not read to its end: the restore has failed")
        return self._collect(reports)

    def _collect(self, folder: Path) -> dict[tuple[str, int], RestoreReport]:
        """Return the last report of each task, with the records of all."""
        rows = self._spark.read.text(str(folder)).collect()
        found = [msgspec.json.decode(row[0], type=RestoreReport) for row in rows]
        total = Counter[tuple[str, int]]()
        last = {}
        for report in sorted(found, key=attrgetter("batch")):
            name = report.store, report.task
            total[name] += report.records
            last[name] = msgspec.structs.replace(report, records=total[name])
        shutil.rmtree(folder)
        return last

    def _report_progress(self) -> None:
        """Report the progress, if there is any."""
        read = self._checkpoint.committed_offsets()
        records = sum(sum(partitions.values()) for partitions in read.values())
        if records == self._read:
            return
        self._read = records
        name = self._program.application_id
        _log.info("%s: %d of at most %d records restored", name, records, self._all)
        if self._on_progress is not None:
            self._on_progress(Restoring(records, self._all))

    def _verified(self, report: RestoreReport) -> RestoredStore:
        """Return the store; raise `StateError` if it does not match its last position."""
        store, found, wanted = report.store, report.found, report.wanted
        if found is None or wanted is None or not found.holds(wanted):
            raise StateError(
                f"the store {store!r} of task {report.task} has {_describe(found)} after a "
                f"restore, and should have {_describe(wanted)}: its changelog "
                f"{self._program.changelogs[store]!r} is damaged, or its serde is not "
                "deterministic; discard the state with thulawa reset"
            )
        checksum = f"{found.checksum:016x}"
        return RestoredStore(store, report.task, report.records, found.entries, checksum)

    def _switch_to_program(self, query: str, todo: RecoveryPlan, unread: More) -> None:
        """Make the program's query continue from the restored stores. The order of steps matters.

        The new generation is written before any of its markers, so that the next restore does not
        look for markers of the old one. The manifest names the new query before the checkpoint is
        marked as complete.
        """
        program, checkpoint, topics = self._program, self._checkpoint, self._topics
        last = checkpoint.last_batch()
        starts = self._positions(todo.starts)
        ends = None if todo.ends is None else self._positions(todo.ends)
        checkpoint.continue_from(starts, ends, (_ordered_partitions(program), unread))
        stamps = tuple(sorted(todo.stamps))
        _write_generation(topics, program, Generation(query, last, todo.done, stamps))
        writer = sink_writer(program.application_id, query)
        for task in todo.done:  # a marker without records
            with topics.broker.transaction(writer, task, LastBatch(last + 1)):
                pass
        publish_manifest(topics, program, checkpoint, query)
        checkpoint.finish()

    def _positions(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offset at which each partition continues.

        Global tables have just been read completely.
        """
        program = self._program
        begins = self._topics.broker.start_offsets(*program.topics)
        found = next_offsets(begins, offsets, program.internal_topics)
        read = self._checkpoint.committed_offsets()
        return found | {topic: read[topic] for topic in program.plan.global_topics}


def next_offsets(
    begins: Offsets, offsets: Mapping[TopicPartition, int], internal: Collection[str]
) -> Offsets:
    """Return where each partition continues, by the offsets of its last known records.

    A partition that no batch has read begins with its first record. The application deletes what
    it has read of its internal topics, also behind the last record: there the broker has the ends
    of transactions, of which no record tells.
    """
    found = {topic: dict(partitions) for topic, partitions in begins.items()}
    for (topic, partition), offset in offsets.items():
        first = found.get(topic, {}).get(partition, 0) if topic in internal else 0
        found.setdefault(topic, {})[partition] = max(offset, first)
    return found


class _KnownOffsets(NamedTuple):
    """The content of an application's offsets topic."""

    generation: Generation | None
    progress: list[Progress]
    unread: list[dict[str, Any]]  # by batch: the partitions with more records than it read

    def unread_after(self, markers: Mapping[int, int]) -> More:
        """Return the partitions that had more records than the last batch read."""
        assert self.generation is not None
        last = max(markers.values(), default=self.generation.batch)
        stamp = batch_stamp(self.generation.query, last)
        return next((one["more"] for one in reversed(self.unread) if one.get("batch") == stamp), {})


def _read_offsets(program: Program, topics: StreamsBroker) -> _KnownOffsets:
    generation = None
    progress, unread = [], []
    for record in read_to_end(topics.broker, program.offsets_topic):
        assert record.key is not None
        content = json.loads(record.value or b"{}")
        if record.key == _GENERATION:
            generation = msgspec.convert(content, Generation)
        elif record.key == MORE:
            unread.append(content)
        else:
            topic, _, partition = record.key.decode().rpartition("/")
            read = TopicPartition(topic, int(partition))
            progress.append(Progress(read, content["batch"], content["start"], content["end"]))
    return _KnownOffsets(generation, progress, unread)


def _write_generation(topics: StreamsBroker, program: Program, generation: Generation) -> None:
    topics.put(program.offsets_topic, _GENERATION, json.dumps(asdict(generation)).encode())


def why_not_restorable(program: Program, topics: StreamsBroker) -> str | None:
    """Return why a lost checkpoint cannot be restored; None if it can be."""
    stores = {name for part in program.plan.parts.values() for name in part.group.stores}
    if lost := sorted(stores - program.changelogs.keys()):
        return f"the store {lost[0]!r} has no changelog to restore it from"
    there = topics.broker.partitions(program.offsets_topic)
    generation = _read_offsets(program, topics).generation if there else None
    if generation is None:
        return f"the topic {program.offsets_topic!r} does not hold its offsets"
    if _held_records_are_lost(program, topics, generation):
        return "records that a task without stores has buffered (max_task_idle) are only there"
    return None


def _held_records_are_lost(program: Program, topics: StreamsBroker, generation: Generation) -> bool:
    """Return whether a task may have buffered records that no changelog holds."""
    if not any(part.stage and not part.group.stores for part in program.plan.parts.values()):
        return False
    if program.options.may_idle:
        return True
    topics.settle(program.application_id, program.offsets_topic)
    markers = topics.last_batches(program.application_id, generation.query)
    return bool(_read_offsets(program, topics).unread_after(markers))


def _ordered_partitions(program: Program) -> More:
    """Return all partitions that tasks may wait for, so that the first batch reports on each."""
    found: dict[str, list[str]] = {}
    for group in program.ordered_groups:
        for topic, numbers in group.items():
            found.setdefault(topic, []).extend(map(str, numbers))
    return found


def begin_empty(program: Program, topics: StreamsBroker, checkpoint: Checkpoint) -> None:
    """Begin a new query with empty stores, whatever changelogs there are."""
    query = str(uuid4())
    checkpoint.begin(query, restoring=False)
    if program.changelogs:
        _write_generation(topics, program, Generation(query))


def _describe(position: Position | None) -> str:
    if position is None:
        return "no position at its end"
    return f"{position.entries} entries with the checksum {position.checksum:016x}"
