"""Rebuild the checkpoint of an application from its own topics: changelogs, offsets, markers.

Restoring is a query of its own, over the changelogs and in a new checkpoint, with the stages of
the program but nothing of what it does. When all stores are there, and are what their last
positions say, the offsets of that checkpoint are replaced by those of the program's topics. The
program's query then goes on from it as after any other batch.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from thulawa.core.errors import StateError
from thulawa.core.types import Offsets, TopicPartition
from thulawa.runtime.recovery import (
    Generation,
    Progress,
    Recovery,
    batch_stamp,
    recover,
)
from thulawa.spark.micro_batch.brokers import Topics
from thulawa.spark.micro_batch.changelogs import MORE
from thulawa.spark.micro_batch.checkpoint import Checkpoint
from thulawa.spark.micro_batch.manifest import write_manifest
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.query import compile_program
from thulawa.spark.micro_batch.restoring import Report
from thulawa.spark.micro_batch.runner import active
from thulawa.state.changelogs import Position

__all__ = [
    "RestoredStore",
    "Restoring",
    "Shown",
    "begin_anew",
    "refuse_lost_changelogs",
    "restore",
    "unrestorable",
]

_log = logging.getLogger("thulawa.streams")
_GENERATION = b"generation"
_REPORTS = "reports"  # the folder, beside Spark's, of what tasks report while stores are rebuilt
_LOOK_SECONDS = 0.5
_RECORDS = 200_000  # of changelogs in a batch; what comes in it is in memory once more


@dataclass(frozen=True, slots=True)
class Restoring:
    """How far restoring has come: the offsets that were passed; compacted ones count as well."""

    records: int
    of: int


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """One task's store: how many records were read, and what is left of them."""

    store: str
    task: int
    records: int
    entries: int
    checksum: str


Shown = Callable[[Restoring], None]
More: TypeAlias = Mapping[str, list[str]]


def refuse_lost_changelogs(program: Program, topics: Topics, checkpoint: Checkpoint) -> None:
    """Refuse to go on where the checkpoint is lost and a changelog too: its store would be empty.

    To be asked before topics are made: one that was just made has no records either.
    """
    names = (program.offsets_topic, *program.changelogs.values())
    there = topics.partitions(names)
    lost = [name for name in names if name not in there]
    if not lost or program.offsets_topic not in there or checkpoint.query is not None:
        return
    generation, _ = _told(topics, program.offsets_topic)
    if generation is not None:  # else no life ever began
        raise StateError(
            f"the checkpoint is lost, and the changelog {lost[0]!r} is gone; put one of them back, "
            "or begin anew with thulawa reset"
        )


def restore(
    spark: SparkSession,
    program: Program,
    topics: Topics,
    checkpoint: Checkpoint,
    shown: Shown | None = None,
) -> list[RestoredStore] | None:
    """Rebuild the checkpoint if it is lost; None: it is there, or there is nothing to rebuild.

    ``spark`` is the session of the program's query, with its settings.
    """
    generation, _ = _told(topics, program.offsets_topic)
    query = checkpoint.query
    if generation is None:
        if query is None:
            query = str(uuid4())
            checkpoint.begin(query, restoring=False)
        _write_generation(topics, program, Generation(query, checkpoint.last_batch()))
        return None
    if query is not None:
        _refuse_another_life(generation, query)
        return None
    return _Restore(spark, program, topics, checkpoint, shown).run()


class _Restore:
    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        topics: Topics,
        checkpoint: Checkpoint,
        shown: Shown | None,
    ) -> None:
        self._spark, self._program, self._topics = spark, program, topics
        self._checkpoint, self._shown = checkpoint, shown
        self._reports: dict[tuple[str, int], Report] = {}
        self._more: More = {}
        self._read = 0
        self._all = 0

    def run(self) -> list[RestoredStore]:
        program, topics = self._program, self._topics
        names = (program.offsets_topic, *program.changelogs.values())
        topics.settle(program.application_id, names)
        generation, progress = _told(topics, program.offsets_topic)  # of open transactions too, now
        assert generation is not None
        markers = topics.last_batches(program.application_id, generation.query)
        todo = recover(generation, len(program.slots), markers, progress)
        self._more = _more_after(topics, program, generation, markers)
        query = str(uuid4())
        self._checkpoint.begin(query, restoring=True)
        self._rebuild(todo, (*names, *program.plan.global_topics))
        found = self._verified()
        self._hand_over(query, todo)
        return found

    def _rebuild(self, todo: Recovery, names: tuple[str, ...]) -> None:
        ends = self._topics.end_offsets(names)
        self._all = sum(end for partitions in ends.values() for end in partitions.values())
        _log.info("%s: restoring %d stores", self._program.application_id,
                  len(self._program.changelogs))  # fmt: skip
        restoring = replace(self._program, run=f"{self._program.run}-restore", recovery=todo)
        reading = partial(self._topics.read, self._spark, names, _RECORDS)
        rows = compile_program(restoring, reading, "restoring")
        reports = Path(self._checkpoint.query_path) / _REPORTS
        # into files: foreachBatch would wait for a thread of Python that another query may hold
        writer = rows.select(col("data").cast("string")).writeStream.format("text")
        writer = writer.option("path", str(reports)).trigger(availableNow=True)
        with active(self._spark):
            query: Any = writer.option("checkpointLocation", self._checkpoint.query_path).start()
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                self._show()
            query.awaitTermination()  # until it has let go of its files
        finally:
            query.stop()
        self._show()
        self._take(reports)
        read = self._checkpoint.committed_offsets()
        for topic, partitions in ends.items():
            for partition, end in partitions.items():
                if read.get(topic, {}).get(partition, 0) < end:
                    raise StateError(f"{topic} was not read to its end: restoring has failed")

    def _take(self, folder: Path) -> None:
        """Add up what the tasks have reported, batch by batch."""
        rows = self._spark.read.text(str(folder)).collect()
        found = [msgspec.json.decode(row[0], type=Report) for row in rows]
        for report in sorted(found, key=lambda report: report.batch):
            place = (report.store, report.task)
            before = self._reports[place].records if place in self._reports else 0
            records = before + report.records
            self._reports[place] = msgspec.structs.replace(report, records=records)
        shutil.rmtree(folder)

    def _show(self) -> None:
        """Say how far restoring has come, where it has come further."""
        read = self._checkpoint.committed_offsets()
        records = sum(sum(partitions.values()) for partitions in read.values())
        if records == self._read:
            return
        self._read = records
        told = Restoring(records, self._all)
        _log.info("%s: %d of at most %d records restored", self._program.application_id,
                  told.records, told.of)  # fmt: skip
        if self._shown is not None:
            self._shown(told)

    def _verified(self) -> list[RestoredStore]:
        """Refuse stores that are not what their last position says."""
        stores = []
        for (store, task), report in sorted(self._reports.items()):
            found, wanted = report.found, report.wanted
            if found is None or wanted is None or not found.holds(wanted):
                raise StateError(
                    f"the store {store!r} of task {task} has {_shown(found)} after restoring, and "
                    f"should have {_shown(wanted)}: its changelog "
                    f"{self._program.changelogs[store]!r} is damaged, or its serde writes a value "
                    "in more than one way; begin anew with thulawa reset"
                )
            checksum = f"{found.checksum:016x}"
            stores.append(RestoredStore(store, task, report.records, found.entries, checksum))
        return stores

    def _hand_over(self, query: str, todo: Recovery) -> None:
        """Let the program's query begin where the stores are. The order of steps matters.

        The new generation is told before any marker of it is written: whoever restores next must
        not look for the old one's. The manifest names the new query before the checkpoint counts.
        """
        program, checkpoint = self._program, self._checkpoint
        last = checkpoint.last_batch()
        starts, ends = self._read_on(todo.starts), None
        if todo.ends is not None:
            ends = self._read_on(todo.ends)
        checkpoint.go_on_from(starts, ends, (_waited_for(program), self._more))
        _write_generation(
            self._topics, program, Generation(query, last, todo.done, tuple(sorted(todo.stamps)))
        )
        for task in todo.done:
            self._topics.claim(program.application_id, query, last + 1, task)
        write_manifest(self._topics, program, checkpoint, query)
        checkpoint.finish()

    def _read_on(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """Give where to go on in every partition.

        One that no batch has read is begun at its first record. Of global tables everything has
        just been read, whatever the batches had.
        """
        found = self._topics.start_offsets(self._program.topics)
        for (topic, partition), offset in offsets.items():
            found.setdefault(topic, {})[partition] = offset
        read = self._checkpoint.committed_offsets()
        return found | {topic: read[topic] for topic in self._program.plan.global_topics}


def _told(topics: Topics, name: str) -> tuple[Generation | None, list[Progress]]:
    """Read what the topic of offsets tells."""
    generation = None
    progress = []
    for key, value in topics.records(name):
        assert key is not None
        told = json.loads(value or b"{}")
        if key == _GENERATION:
            generation = Generation(
                told["query"], told["batch"], tuple(told["done"]), tuple(told["stamps"])
            )
            continue
        if key == MORE:
            continue
        topic, _, partition = key.decode().rpartition("/")
        progress.append(
            Progress(
                TopicPartition(topic, int(partition)), told["batch"], told["start"], told["end"]
            )
        )
    return generation, progress


def _write_generation(topics: Topics, program: Program, generation: Generation) -> None:
    topics.put(program.offsets_topic, _GENERATION, json.dumps(asdict(generation)).encode())


def unrestorable(program: Program, topics: Topics) -> str | None:
    """Return why a lost checkpoint of the program cannot be rebuilt; None: it can be."""
    stores = {name for part in program.plan.parts.values() for name in part.group.stores}
    if lost := sorted(stores - program.changelogs.keys()):
        return f"the store {lost[0]!r} has no changelog to be rebuilt from"
    there = topics.partitions((program.offsets_topic,))
    generation = _told(topics, program.offsets_topic)[0] if there else None
    if generation is None:
        return f"the topic {program.offsets_topic!r} does not say where to go on"
    if _held_records_are_lost(program, topics, generation):
        return "records that a task without stores held back (max_task_idle) are only there"
    return None


def _held_records_are_lost(program: Program, topics: Topics, generation: Generation) -> bool:
    """Return whether a task may have held records back that no changelog has."""
    if not any(part.stage and not part.group.stores for part in program.plan.parts.values()):
        return False
    if program.options.waits_by_the_clock:
        return True
    topics.settle(program.application_id, (program.offsets_topic,))
    markers = topics.last_batches(program.application_id, generation.query)
    return bool(_more_after(topics, program, generation, markers))


def _waited_for(program: Program) -> More:
    """Return all partitions that tasks may wait for: those read to their end are told of."""
    found: dict[str, list[str]] = {}
    for group in program.together:
        for topic, numbers in group.items():
            found.setdefault(topic, []).extend(map(str, numbers))
    return found


def _more_after(
    topics: Topics, program: Program, generation: Generation, markers: Mapping[int, int]
) -> More:
    """Return the partitions of which the broker had more than the last batch read."""
    stamp = batch_stamp(generation.query, max(markers.values(), default=generation.batch))
    found = [json.loads(value or b"{}") for key, value in topics.records(program.offsets_topic)
             if key == MORE]  # fmt: skip
    return next((one["more"] for one in reversed(found) if one.get("batch") == stamp), {})


def begin_anew(program: Program, topics: Topics, checkpoint: Checkpoint) -> None:
    """Begin a life with empty stores, whatever changelogs there are."""
    query = str(uuid4())
    checkpoint.begin(query, restoring=False)
    if program.changelogs:
        _write_generation(topics, program, Generation(query))


def _refuse_another_life(generation: Generation, query: str) -> None:
    if generation.query != query:
        raise StateError(
            "the application has gone on from another checkpoint since this one: its changelogs "
            "are ahead of it; remove this checkpoint, and the state is rebuilt from them"
        )


def _shown(position: Position | None) -> str:
    if position is None:
        return "no position at its end"
    return f"{position.entries} entries with the checksum {position.checksum:016x}"
