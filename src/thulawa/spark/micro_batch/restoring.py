"""Tasks that restore their stores from changelogs and process nothing meanwhile."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from thulawa.core.records import Headers
from thulawa.engine.lane_sums import LaneSums
from thulawa.runtime.global_tables import GlobalTables
from thulawa.runtime.metrics import RecordCounts
from thulawa.runtime.planning import StagedSubTopology
from thulawa.spark.micro_batch.changelog_output import BEFORE, POSITIONS, STAMP
from thulawa.spark.micro_batch.collector import TaskOutput
from thulawa.spark.micro_batch.program import Program
from thulawa.spark.micro_batch.wire import SINK, Packed, records_of
from thulawa.spark.task_context import current_task
from thulawa.state.codec import ColumnCodec
from thulawa.state.paged import PagedStores, StateBackend
from thulawa.state.store_changelog import POSITION, Position, StoreChangelog

__all__ = ["RestoreReport", "RestoringTask"]

_codec = ColumnCodec()


class RestoreReport(msgspec.Struct, frozen=True):
    """The records of a changelog that a task has read in one micro-batch.

    ``found`` is the recomputed position of the store, if the micro-batch ends with a position
    record; ``wanted`` is the position that this record states.
    """

    store: str
    task: int
    records: int
    batch: int = 0
    found: Position | None = None
    wanted: Position | None = None


class RestoringTask:
    """One task whose stores are being restored."""

    def __init__(self, program: Program, part: StagedSubTopology, number: int) -> None:
        assert program.recovery is not None
        self._program = program
        self._stamps = {stamp.encode() for stamp in program.recovery.stamps}
        self._number = number
        plan = program.plan
        tables = plan.global_tables(part.group)
        specs = plan.topology.stores
        names = dict.fromkeys((*part.group.stores, *(table.stores[0] for table in tables)))
        self._logs = {name: StoreChangelog(specs[name]) for name in part.group.stores}
        self._stores = PagedStores({name: specs[name] for name in names})
        self._output = TaskOutput(program, part, number)
        self._tables = plan.topology, program.options, self._output.send, self._stores.backing
        self._which = tables

    def run(
        self,
        rows: Iterable[Packed],
        now: int,  # noqa: ARG002 nothing is processed
        kept: StateBackend,
    ) -> Iterator[list[Packed]]:
        """Apply the changelog records of a micro-batch; yield a report for each changelog."""
        self._stores.open(kept)
        snapshot: dict[str, Any] = dict(self._stores.snapshot or {})
        tables = GlobalTables(*self._tables, self._which)
        read: dict[str, list[RestoreReport]] = {}
        for row in sorted(rows, key=lambda row: row.place):
            if row.topic in self._program.plan.global_topics:
                for offset, time, key, value, _ in records_of(row):
                    tables.update(row.topic, offset, key, value, time)
            else:
                _, store = self._program.restored[row.topic]
                read.setdefault(store, []).append(self._apply(store, row, snapshot))
        yield [self._row(reports) for reports in read.values()]
        self._stores.flush(kept, snapshot)

    def next_wall_clock_time(self) -> None:
        """Return None: there are no timers."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def take_lanes(self) -> dict[str, LaneSums]:
        """Return nothing: no async node runs."""
        return {}

    def take_counts(self) -> RecordCounts:
        """Return nothing: no record is processed."""
        return Counter()

    def _apply(self, store: str, row: Packed, snapshot: dict[str, Any]) -> RestoreReport:
        entries, log = self._stores.backing(store), self._logs[store]
        count, ends = 0, False
        for _, _, key, value, headers in records_of(row):
            count += 1
            kept = self._effective(value, headers)
            ends = key == POSITION
            if ends:
                _set_position(snapshot, store, kept)
                continue
            name, entry = log.read(key, kept)
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        if not ends:
            return RestoreReport(store, self._number, count, _batch())
        stated = snapshot.get(POSITIONS, {}).get(store)
        wanted = Position() if stated is None else Position.decode(stated).bare()
        return RestoreReport(store, self._number, count, _batch(), log.position(entries), wanted)

    def _effective(self, value: bytes | None, headers: Headers) -> bytes | None:
        """Return the value that counts: for a micro-batch that is undone, the one before it."""
        if self._stamps and headers:
            named = dict(headers)
            if named.get(STAMP) in self._stamps:
                return named.get(BEFORE)
        return value

    def _row(self, reports: list[RestoreReport]) -> Packed:
        last = reports[-1]
        total = sum(one.records for one in reports)
        data = msgspec.json.encode(msgspec.structs.replace(last, records=total))
        slot = self._program.slot_of(self._number)
        return Packed(slot, SINK, self._number, last.store, 0, "", data)


def _batch() -> int:
    """Return the number of the current micro-batch; 0 outside Spark."""
    task = current_task()
    return 0 if task is None or task.batch is None else task.batch


def _set_position(snapshot: dict[str, Any], store: str, position: bytes | None) -> None:
    """Set the position of a store and the task snapshot at that position."""
    positions = dict(snapshot.get(POSITIONS, {}))
    if position is not None:
        positions[store] = position
        (known,) = _codec.decode(Position.decode(position).known)
        snapshot.update({**known, POSITIONS: positions})
    elif positions.pop(store, None) and positions:
        snapshot[POSITIONS] = positions
    else:
        snapshot.clear()  # the task had never run
