"""Count the messages of one partition, in Arrow columns, and add them to its totals.

A message belongs to the window of its timestamp, and is counted there however late it arrives,
until the window has *expired*: until the newest window that the partition has seen up to this
message starts more than ``expire`` later. Whether a message is counted depends only on the messages
of its partition up to it, not on the machine's clock. So every instance gets the same counts, with
batches of any size: totals are a function of the partition's messages before `Totals.position`. Of
two instances that count the same partition, the one with the higher position may always overwrite
the other.

Arrow does the work per message, except for status functions that are called for each.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.types import TopicPartition
from thulawa.errors import ConfigurationError
from thulawa.health.counts import Cell, Count
from thulawa.health.statuses import InColumns, Status, Values, statuses


@dataclass(frozen=True, slots=True)
class Rule:
    """How messages are counted: their status, the size of windows, when windows expire."""

    status: Status
    window: int
    expire: int

    @classmethod
    def of(cls, status: Status, window: Duration, expire: Duration) -> "Rule":
        """Create a rule; raise `ConfigurationError` for values that cannot work."""
        if not callable(status) and not isinstance(status, InColumns):
            raise ConfigurationError(
                f"status={status!r} is not a function; json_schema(…) creates one from a schema"
            )
        rule = cls(status, milliseconds(window, name="window"), milliseconds(expire, name="expire"))
        if rule.window < 1:
            raise ConfigurationError("window must be at least 1 ms")
        if rule.expire < rule.window:
            raise ConfigurationError("expire must be at least as long as a window")
        return rule


class Messages(NamedTuple):
    """Some messages of one partition, in offset order; timestamps are in milliseconds."""

    offsets: pa.Array
    timestamps: pa.Array
    values: Values

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "Messages":
        """Create it from the columns offset, timestamp and value."""
        return cls(rows["offset"], rows["timestamp"], rows["value"])

    def filter(self, wanted: pa.Array) -> "Messages":
        """Return the messages for which ``wanted`` is true."""
        offsets, timestamps, values = self
        if isinstance(values, list):
            filtered = list(compress(values, wanted.to_pylist()))
        else:
            filtered = values.filter(wanted)
        return Messages(offsets.filter(wanted), timestamps.filter(wanted), filtered)


class Since(NamedTuple):
    """Where counting continues: the next offset, and the newest window seen before it."""

    offset: int = 0
    newest: int | None = None


class Added(NamedTuple):
    """The number of new messages of a cell, and the offset after the last of them."""

    window: int
    status: str
    messages: int
    offset: int


@dataclass(slots=True)
class Counter:
    """Counts messages of one partition, in the order of offsets.

    Messages before ``since`` are skipped: they are counted already.
    """

    rule: Rule
    since: Since = field(default_factory=Since)
    expired: int = 0
    _newest: int | None = None
    _cells: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._newest = self.since.newest

    def add(self, messages: Messages) -> None:
        """Count some messages."""
        if len(messages.offsets) and messages.offsets[0].as_py() < self.since.offset:
            messages = messages.filter(pc.greater_equal(messages.offsets, self.since.offset))
        if not len(messages.offsets):
            return
        windows = _floored(messages.timestamps, self.rule.window)
        live = self._live(windows)
        if live is not None:
            messages, windows = messages.filter(live), windows.filter(live)
        found = statuses(self.rule.status, messages.values)
        table = pa.table({"window": windows, "status": found, "offset": messages.offsets})
        groups = table.group_by(["window", "status"], use_threads=False).aggregate(
            [("offset", "count"), ("offset", "max")]
        )
        columns = ("window", "status", "offset_count", "offset_max")
        for window, status, count, last in zip(
            *(groups[name].to_pylist() for name in columns), strict=True
        ):
            before, _ = self._cells.get((window, status), (0, 0))
            self._cells[window, status] = before + count, last + 1

    def added(self) -> list[Added]:
        """Return what was counted, sorted by window."""
        return [
            Added(window, status, count, offset)
            for (window, status), (count, offset) in sorted(self._cells.items())
        ]

    def _live(self, windows: pa.Array) -> pa.Array | None:
        """Return a mask of the messages whose windows have not expired; None for all of them."""
        bounds, before = pc.min_max(windows), self._newest
        oldest, newest = bounds["min"].as_py(), bounds["max"].as_py()
        self._newest = newest if before is None else max(before, newest)
        if self._newest - oldest <= self.rule.expire:
            return None
        # a null start: there is no earlier window
        seen = pc.cumulative_max(windows, start=before)
        live = pc.less_equal(pc.subtract(seen, windows), self.rule.expire)
        self.expired += len(live) - live.true_count
        return live


def _floored(timestamps: pa.Array, width: int) -> pa.Array:
    """Return the starts of windows; division rounds towards 0, and times may be before 1970."""
    starts = pc.multiply(pc.divide(timestamps, width), width)
    early = pc.greater(starts, timestamps)
    if not pc.any(early).as_py():
        return starts
    return pc.if_else(early, pc.subtract(starts, width), starts)


class Totals:
    """The cells of one partition whose windows have not expired.

    ``position`` is the offset up to which the partition is counted.
    """

    def __init__(self, partition: TopicPartition, expire: int) -> None:
        self.position = 0
        self._partition = partition
        self._expire = expire
        self._windows: dict[int, dict[str, tuple[int, int]]] = {}  # value and offset by status
        self._order: list[int] = []  # a heap of the windows
        self._newest: int | None = None

    @property
    def since(self) -> Since:
        """Where counting continues."""
        return Since(self.position, self._newest)

    def restore(self, count: Count) -> None:
        """Apply a record of the topic: the total with the higher offset replaces the other.

        A tombstone removes the cell: its window has expired for good.
        """
        _, _, window, status = count.cell
        cells = self._windows.get(window, {})
        if count.value is None:
            cells.pop(status, None)
        elif count.offset >= cells.get(status, (0, -1))[1]:
            self._put(window, status, count.value, count.offset)

    def add(self, added: Iterable[Added], *, position: int) -> list[Count]:
        """Add new counts; return the totals that changed, then tombstones of expired windows.

        A cell may be in both: its last total, for sinks, and then its tombstone. ``position`` is
        the offset up to which the partition was read, which may have had nothing to count.
        """
        changed = []
        for window, status, more, offset in added:
            value, _ = self._windows.get(window, {}).get(status, (0, 0))
            self._put(window, status, value + more, offset)
            changed.append(self._count(window, status, value + more, offset))
        self.position = max(self.position, position)
        while self._newest is not None and self._newest - self._order[0] > self._expire:
            window = heapq.heappop(self._order)
            expired = self._windows.pop(window)
            changed += [self._count(window, status, None, self.position) for status in expired]
        return changed

    def counts(self) -> list[Count]:
        """Return all totals, sorted by window."""
        return [
            self._count(window, status, *self._windows[window][status])
            for window in sorted(self._windows)
            for status in sorted(self._windows[window])
        ]

    def _put(self, window: int, status: str, value: int, offset: int) -> None:
        if window not in self._windows:
            self._windows[window] = {}
            heapq.heappush(self._order, window)
        self._windows[window][status] = value, offset
        self.position = max(self.position, offset)
        if self._newest is None or window > self._newest:
            self._newest = window

    def _count(self, window: int, status: str, value: int | None, offset: int) -> Count:
        return Count(Cell(*self._partition, window, status), value, offset)
