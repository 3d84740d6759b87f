"""Changelog records and read positions, from which a lost checkpoint can be restored.

Both are written with the outputs of a micro-batch, by the same sink and in the same transactions.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from thulawa.core.records import Headers
from thulawa.core.types import TopicPartition
from thulawa.runtime.planning import StagedSubTopology
from thulawa.runtime.recovery_plan import batch_stamp
from thulawa.spark.connectors.chunks import Behind
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import SINK, Outgoing, Packed
from thulawa.spark.task_context import current_task
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores
from thulawa.state.store_changelog import Position, StoreChangelog

STAMP, BEFORE = "batch", "before"  # headers of changelog records
POSITIONS = "changelogs"  # in a task's snapshot: the positions of its changelogs
MORE = b"more"  # in the offsets topic: the partitions with unread records

_codec = ColumnCodec()


class TaskChangelogs:
    """Writes the changes that a micro-batch makes to the stores of one task."""

    def __init__(self, program: Program, part: StagedSubTopology) -> None:
        stores = program.plan.topology.stores
        self._logs = {
            store: (program.changelogs[store], StoreChangelog(stores[store]))
            for store in part.group.stores
            if store in program.changelogs
        }
        # the output of a single task is one transaction, which needs no stamp to be undone
        self._shared = len(program.slots) > 1

    def write(
        self, stores: PagedStores, snapshot: Mapping[str, Any], now: int, output: TaskOutput
    ) -> dict[str, Any]:
        """Send the changes since the last commit; return the snapshot with the new positions."""
        if not self._logs:
            return dict(snapshot)
        last = (stores.snapshot or {}).get(POSITIONS, {})
        known = _codec.encode([snapshot])
        stamp = _stamp() if self._shared else None
        stamped: Headers = () if stamp is None else ((STAMP, stamp.encode()),)
        positions = {}
        for store, (topic, log) in self._logs.items():
            at = Position.decode(last[store]) if store in last else None
            changes, position = log.changes(stores.backing(store), at, known)
            for key, value, before in changes:
                headers = stamped
                if stamped and before is not None:
                    headers = (*stamped, (BEFORE, before))
                output.send_change(topic, (key, value), now, headers)
            positions[store] = position.encode()
        return {**snapshot, POSITIONS: positions}


class ReadPositions:
    """The ranges of records that a micro-batch has read, from which a restore continues.

    Every writing task gets the ranges of all partitions, so each transaction has all of them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ranges: dict[TopicPartition, tuple[int, int, int]] = {}
        self._more: dict[str, list[str]] = {}
        self.is_needed = bool(program.changelogs) and program.recovery is None

    def add(self, topic: TopicPartition, first: int, span: tuple[int, int]) -> None:
        """Add records of one partition, in offset order; ``span`` is their end offset and time."""
        start = self._ranges[topic][0] if topic in self._ranges else first
        self._ranges[topic] = (start, *span)

    def add_unread(self, of: Behind) -> None:
        """Add a partition that has more records than the micro-batch reads."""
        if of.behind:
            self._more.setdefault(of.topic, []).append(str(of.partition))

    def rows(self) -> Iterator[Packed]:
        """Yield the records for the offsets topic, one row for each writing task."""
        stamp = _stamp()
        if not (self._ranges or self._more) or stamp is None:
            return
        for number in range(len(self._program.slots)):
            records = Outgoing()
            for topic, (start, end, at) in self._ranges.items():
                value = json.dumps({"batch": stamp, "start": start, "end": end}).encode()
                key = f"{topic.topic}/{topic.partition}".encode()
                records.add(self._program.offsets_topic, number, key, value, at, ())
            if self._more:
                value = json.dumps({"batch": stamp, "more": self._more}).encode()
                now = int(time.time() * 1_000)
                records.add(self._program.offsets_topic, number, MORE, value, now, ())
            for name, partition, data in records.take():
                yield self._program.row(SINK, number, name, partition, "", data)


def _stamp() -> str | None:
    """Return the stamp of the current micro-batch; None outside a streaming query."""
    task = current_task()
    streaming = None if task is None else task.streaming
    return None if streaming is None else batch_stamp(streaming.query, streaming.batch)
