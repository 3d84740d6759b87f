"""Aggregation over sliding windows.

Each record defines two windows: the one that ends at it, and the one that begins right after it,
which is created once a later record falls into it. A new window starts from the aggregate of an
existing one: the window before it covers the records on its left, the window around it those on its
right. A window's timestamp is that of its latest record, which locates the neighbouring record
without storing the records themselves.
"""

from typing import Any

from thulawa.core.records import Change, Headers, Window, Windowed
from thulawa.runtime.aggregates import closed_windows, start_value
from thulawa.runtime.context import Failed, Forward, TaskContext
from thulawa.state.window_stores import WindowStore
from thulawa.topology.nodes import Aggregate
from thulawa.topology.windows import SlidingWindows

_Entry = tuple[Any, int]


def sliding_aggregate(
    node: Aggregate, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Fold the records of a key that are at most ``difference`` apart."""
    windows = node.window
    assert isinstance(windows, SlidingWindows)
    store: WindowStore = context.store(node.store)
    clock = context.clock(node.clock)
    difference = windows.difference
    emit_closed = closed_windows(
        store, clock, context, forward, span=difference + 1, keep=2 * difference
    )
    on_update = node.emit == "update"

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return context.drop(node.name)
        clock.time = max(clock.time, timestamp)
        close_time = clock.time - windows.grace
        if timestamp + windows.difference < close_time:
            return context.drop(node.name, "late")
        update = _Update(node, store, key, value, timestamp, close_time)
        try:
            update.run()
            for _, change, _ in update.changes:
                store.values.check(change.new)
        except Exception as error:  # noqa: BLE001 the handler decides about any error
            return failed(error, key, value, timestamp, headers)
        for window, change, time in update.changes:
            store.put(key, change.new, window.start, time)
            if on_update:
                forward(Windowed(key, window), change, time, headers)
        if not on_update:
            emit_closed(close_time, headers)
        return None

    return process


class _Update:
    """The changes of one record. Nothing is stored before all user functions have returned."""

    def __init__(
        self,
        node: Aggregate,
        store: WindowStore,
        key: Any,
        value: Any,
        timestamp: int,
        close_time: int,
    ) -> None:
        assert isinstance(node.window, SlidingWindows)
        self._difference = node.window.difference
        self._initial = start_value(node)
        self._fold = node.aggregator
        self._store = store
        self._key = key
        self._value = value
        self._timestamp = timestamp
        self._close_time = close_time
        self.changes: list[tuple[Window, Change, int]] = []
        self._starts: set[int] = set()
        self._right: _Entry | None = None  # of the latest window that reaches beyond the record
        self._previous: int | None = None  # the time of the record before this one

    def run(self) -> None:
        """Compute the changes."""
        if self._timestamp < self._difference:
            self._early()
        else:
            self._usual()

    def _usual(self) -> None:
        timestamp, difference = self._timestamp, self._difference
        left: _Entry | None = None
        has_left = False
        first = max(0, timestamp - 2 * difference)
        for window, entry in reversed(self._store.range(self._key, first, timestamp + 1)):
            self._starts.add(window.start)
            if window.start == timestamp + 1:
                continue
            if window.end > timestamp:
                self._right = self._right or entry
                self._add(window, entry)
            elif window.end == timestamp:
                has_left = True
                self._add(window, entry)
                if entry[1] >= timestamp:
                    return  # there was a record with this timestamp: all its windows exist
                self._previous = entry[1]
            else:
                left, self._previous = entry, entry[1]
                break
        self._previous_right_window(timestamp)
        if not has_left:
            reaches = self._previous is not None and timestamp - difference <= self._previous
            start = left if reaches and left is not None else (self._initial(), timestamp)
            self._add(Window(timestamp - difference, timestamp), (start[0], timestamp))
        self._own_right_window()

    def _early(self) -> None:
        """Process a record so early that the window which ends at it begins at 0."""
        timestamp, difference = self._timestamp, self._difference
        combined: _Entry | None = None
        for window, entry in self._store.range(self._key, 0, timestamp + 1):
            self._starts.add(window.start)
            if window.start == 0:
                combined = entry
                if entry[1] < timestamp:
                    self._previous = entry[1]
            elif window.start <= timestamp:
                self._right = entry
                self._add(window, entry)
        if self._right is None and combined is not None and combined[1] > timestamp:
            self._right = combined
        self._own_right_window()
        self._previous_right_window(None)
        first = combined or (self._initial(), timestamp)
        self._add(Window(0, difference), first)

    def _previous_right_window(self, must_reach: int | None) -> None:
        """Create the window right after the previous record, which contains this record."""
        if self._previous is None or self._previous + 1 in self._starts:
            return
        start = self._previous + 1
        if must_reach is None or start + self._difference >= must_reach:
            window = Window(start, start + self._difference)
            self._add(window, (self._initial(), self._timestamp))

    def _own_right_window(self) -> None:
        """Create the window right after this record, if it contains later records."""
        start = self._timestamp + 1
        if start not in self._starts and self._right and self._right[1] > self._timestamp:
            value, time = self._right
            window = Window(start, start + self._difference)
            self.changes.append((window, Change(value, None), time))

    def _add(self, window: Window, entry: _Entry) -> None:
        if window.end >= self._close_time:
            old = entry[0]
            new = self._fold(self._key, self._value, old)
            time = self._timestamp if old is None else max(self._timestamp, entry[1])
            self.changes.append((window, Change(new, old), time))
