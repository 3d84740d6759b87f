"""Step one: count the messages of one partition, in columns.

A message belongs into the window of its timestamp, and is counted there however late it comes,
until the window has *expired*: until the newest window that its partition has seen up to this
message starts more than ``expire`` later. Whether a message is counted depends on nothing but the
partition's messages up to it, so that every instance, in batches of any size, comes to the same
counts. The clock of the machine plays no part.

Work per message is Arrow's, but for a status function that is called for each.
"""

from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from thulawa.core.durations import Duration, milliseconds
from thulawa.core.errors import ConfigurationError
from thulawa.health.statuses import InColumns, Status, Values, statuses

__all__ = ["Added", "Counter", "Messages", "Rule", "Since"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How messages are counted: their status, the width of windows, when windows expire."""

    status: Status
    window: int
    expire: int

    @classmethod
    def of(cls, status: Status, window: Duration, expire: Duration) -> "Rule":
        """Check them."""
        if not callable(status) and not isinstance(status, InColumns):
            raise ConfigurationError(
                f"status={status!r} is no function; json_schema(…) makes one of a schema"
            )
        made = cls(status, milliseconds(window, name="window"), milliseconds(expire, name="expire"))
        if made.window < 1:
            raise ConfigurationError("window must be at least 1 ms")
        if made.expire < made.window:
            raise ConfigurationError("expire must be at least as long as a window")
        return made


class Messages(NamedTuple):
    """Some messages of one partition, in offset order; timestamps are in milliseconds."""

    offsets: pa.Array
    timestamps: pa.Array
    values: Values

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "Messages":
        """Take the columns by their names."""
        return cls(rows["offset"], rows["timestamp"], rows["value"])

    def filter(self, wanted: pa.Array) -> "Messages":
        """Leave out what is not wanted."""
        offsets, timestamps, values = self
        kept = (
            list(compress(values, wanted.to_pylist()))
            if isinstance(values, list)
            else values.filter(wanted)
        )
        return Messages(offsets.filter(wanted), timestamps.filter(wanted), kept)


class Since(NamedTuple):
    """Where counting goes on: the next offset, and the newest window seen before it."""

    offset: int = 0
    newest: int | None = None


class Added(NamedTuple):
    """What messages add to a cell, and the offset behind the last of them."""

    window: int
    status: str
    messages: int
    offset: int


@dataclass(slots=True)
class Counter:
    """Counts messages of one partition, which it must be given in offset order.

    Messages before ``since`` are passed over: they are counted already.
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
        self._count(windows, found, messages.offsets)

    def added(self) -> list[Added]:
        """Give what was counted, by window."""
        return [
            Added(window, status, count, offset)
            for (window, status), (count, offset) in sorted(self._cells.items())
        ]

    def _live(self, windows: pa.Array) -> pa.Array | None:
        """Tell which messages are to be counted; None for all of them."""
        bounds, before = pc.min_max(windows), self._newest
        oldest, newest = bounds["min"].as_py(), bounds["max"].as_py()
        self._newest = newest if before is None else max(before, newest)
        if self._newest - oldest <= self.rule.expire:
            return None
        # null: Arrow's way to say that there is nothing to start from
        seen = pc.cumulative_max(windows, start=before)
        live = pc.less_equal(pc.subtract(seen, windows), self.rule.expire)
        self.expired += len(live) - live.true_count
        return live

    def _count(self, windows: pa.Array, found: pa.Array, offsets: pa.Array) -> None:
        table = pa.table({"window": windows, "status": found, "offset": offsets})
        groups = table.group_by(["window", "status"], use_threads=False).aggregate(
            [("offset", "count"), ("offset", "max")]
        )
        for window, status, count, last in zip(
            groups["window"].to_pylist(),
            groups["status"].to_pylist(),
            groups["offset_count"].to_pylist(),
            groups["offset_max"].to_pylist(),
            strict=True,
        ):
            before, _ = self._cells.get((window, status), (0, 0))
            self._cells[window, status] = before + count, last + 1


def _floored(timestamps: pa.Array, width: int) -> pa.Array:
    """Give the starts of windows; division rounds towards 0, and a time may lie before 1970."""
    starts = pc.multiply(pc.divide(timestamps, width), width)
    early = pc.greater(starts, timestamps)
    if not pc.any(early).as_py():
        return starts
    return pc.if_else(early, pc.subtract(starts, width), starts)
