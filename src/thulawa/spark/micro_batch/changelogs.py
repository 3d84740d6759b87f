"""What a batch leaves behind for the day its checkpoint is lost: changelogs, and its progress.

Both leave with the outputs of the batch, through the same sink and in the same transactions.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from thulawa.core.records import Headers
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.recovery_plan import batch_stamp
from thulawa.spark.connectors.chunks import Behind
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import SINK, Outgoing, Packed, Topic
from thulawa.spark.task_context import current_task
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores
from thulawa.state.store_changelog import Position, StoreChangelog

__all__ = ["BEFORE", "MORE", "POSITIONS", "STAMP", "ReadSoFar", "TaskChangelogs"]

STAMP, BEFORE = "batch", "before"  # headers of a changelog's records
POSITIONS = "changelogs"  # in a task's snapshot: where its changelogs are
MORE = b"more"  # in the topic of offsets: the partitions of which the broker had more

_codec = ColumnCodec()


class TaskChangelogs:
    """Writes what a batch changed in the stores of one task."""

    def __init__(self, program: Program, part: StagedSubTopology) -> None:
        stores = program.plan.topology.stores
        self._logs = {
            store: (program.changelogs[store], StoreChangelog(stores[store]))
            for store in part.group.stores
            if store in program.changelogs
        }
        # a batch that one task writes is one transaction, and there or not
        self._shared = len(program.slots) > 1

    def write(
        self, stores: PagedStores, snapshot: Mapping[str, Any], now: int, output: TaskOutput
    ) -> dict[str, Any]:
        """Send the changes since the last commit; give the snapshot with the new positions."""
        if not self._logs:
            return dict(snapshot)
        last = (stores.snapshot or {}).get(POSITIONS, {})
        known = _codec.encode([snapshot])
        stamped = self._stamp()
        positions = {}
        for store, (topic, log) in self._logs.items():
            at = Position.decode(last[store]) if store in last else None
            changes, position = log.changes(stores.backing(store), at, known)
            for key, value, before in changes:
                headers = stamped
                if stamped and before is not None:
                    headers = (*stamped, (BEFORE, before))
                output.keep(topic, (key, value), now, headers)
            positions[store] = position.encode()
        return {**snapshot, POSITIONS: positions}

    def _stamp(self) -> Headers:
        stamp = _stamp() if self._shared else None
        return () if stamp is None else ((STAMP, stamp.encode()),)


class ReadSoFar:
    """Which records of its topics a batch has read, for whoever must go on without a checkpoint.

    Every task that writes is told of every partition: so each one's transaction says it all.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ranges: dict[Topic, tuple[int, int, int]] = {}
        self._more: dict[str, list[str]] = {}

    @property
    def wanted(self) -> bool:
        """Whether anybody will ask."""
        return bool(self._program.changelogs) and self._program.recovery is None

    def note(self, topic: Topic, first: int, span: tuple[int, int]) -> None:
        """Take note of records of one partition, in offset order; ``span``: end and time."""
        start = self._ranges[topic][0] if topic in self._ranges else first
        self._ranges[topic] = (start, *span)

    def note_more(self, of: Behind) -> None:
        """Note a partition of which the broker has more than the batch reads."""
        if of.behind:
            self._more.setdefault(of.topic, []).append(str(of.partition))

    def told(self) -> Iterator[Packed]:
        """Give the records for the topic of offsets, one row to each task that writes."""
        stamp = _stamp()
        if not (self._ranges or self._more) or stamp is None:
            return
        for number, slot in enumerate(self._program.slots):
            records = Outgoing()
            for topic, (start, end, at) in self._ranges.items():
                value = json.dumps({"batch": stamp, "start": start, "end": end}).encode()
                key = f"{topic.name}/{topic.partition}".encode()
                records.add(self._program.offsets_topic, number, key, value, at, ())
            if self._more:
                value = json.dumps({"batch": stamp, "more": self._more}).encode()
                records.add(self._program.offsets_topic, number, MORE, value, _now(), ())
            for name, partition, data in records.take():
                yield Packed(slot, SINK, number, name, partition, "", data)


def _now() -> int:
    return int(time.time() * 1_000)


def _stamp() -> str | None:
    """Give the stamp of the batch at hand; None where there is none, as in a dry run."""
    task = current_task()
    streamed = None if task is None else task.streamed
    return None if streamed is None else batch_stamp(streamed.query, streamed.batch)
