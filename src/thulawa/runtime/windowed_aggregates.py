"""Aggregations of streams over time, session and sliding windows.

Each windowed aggregation has a stream time of its own; a record without a key does not advance it.
"""

from collections.abc import Callable
from typing import Any

from thulawa.core.records import Change, Headers, Window, Windowed
from thulawa.runtime.aggregates import start_value
from thulawa.runtime.context import Forward, Wiring
from thulawa.state.window_stores import SessionStore, WindowStore
from thulawa.topology.nodes import Aggregate
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows

_Entry = tuple[Any, int]


def time_aggregate(node: Aggregate, wiring: Wiring) -> Forward:
    """Fold the records of a key within each time window they fall into.

    A window accepts records while its end + grace is above the node's stream time. Each window is
    tested by itself, so a record that is late for one window may count in a newer one.
    """
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    windows = node.window
    assert isinstance(windows, TimeWindows)
    store: WindowStore = context.store(node.store)
    clock = context.clock(node.clock)
    initial, fold = start_value(node), node.aggregator
    windows_for, grace = windows.windows_for, windows.grace
    on_update = node.emit == "update"
    emit_closed = _closed_windows(node, wiring, span=windows.size)

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return context.drop(node.name)
        if timestamp > clock.time:
            clock.time = timestamp
        close_time = clock.time - grace
        for window in windows_for(timestamp):
            if window.end <= close_time:
                context.drop(node.name, "late")
                continue
            try:
                old, time = store.fetch(key, window.start) or (None, timestamp)
                time = max(time, timestamp)
                new = fold(key, value, initial() if old is None else old)
                store.put(key, new, window.start, time)
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                failed(error, key, value, timestamp, headers)
                continue
            if on_update:
                forward(Windowed(key, window), Change(new, old), time, headers)
        if not on_update:
            emit_closed(close_time, headers)
        return None

    return process


def _closed_windows(
    node: Aggregate, wiring: Wiring, *, span: int, keep: int = 0
) -> Callable[[int, Headers], None]:
    """Return a function that emits the windows which have closed since its last call.

    The store retains windows until they are emitted, however far time jumps. ``span`` is the time
    between a window's start and its close, ``keep`` the time for which an emitted window is still
    needed.
    """
    context, forward = wiring.context, wiring.forward
    store, clock = context.store(node.store), context.clock(node.clock)

    def emit(close_time: int, headers: Headers) -> None:
        latest = close_time - span
        if close_time <= clock.emitted or latest < 0:
            return
        earliest = clock.emitted - span + 1 if clock.emitted >= 0 else 0
        with context.attribute_errors_to(None):
            for windowed, (value, timestamp) in store.starting(max(0, earliest), latest):
                forward(windowed, Change(value, None), timestamp, headers)
        store.expire(latest - keep)
        clock.emitted = close_time

    return emit


def session_aggregate(node: Aggregate, wiring: Wiring) -> Forward:
    """Fold the records of a key within each session.

    A record merges the open sessions within the gap into one. The merged sessions are retracted
    first, unless the result is a session of a single timestamp.
    """
    context, failed = wiring.context, wiring.failed
    windows, merge = node.window, node.merge
    assert isinstance(windows, SessionWindows)
    assert merge is not None
    store: SessionStore = context.store(node.store)
    clock = context.clock(node.clock)
    initial, fold = start_value(node), node.aggregator
    gap = windows.gap
    on_update = node.emit == "update"
    update = _session_update(node, wiring)
    emit_closed = _closed_sessions(node, wiring)

    def folded(key: Any, value: Any, merged: list[tuple[Window, Any]]) -> Any:
        result = initial()
        for _, part in merged:
            result = merge(key, result, part)
        return fold(key, value, result)

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return context.drop(node.name)
        clock.time = max(clock.time, timestamp)
        close_time = clock.time - windows.grace - gap
        merged = store.overlapping(key, timestamp - gap, timestamp + gap)
        start = min([timestamp, *(window.start for window, _ in merged)])
        end = max([timestamp, *(window.end for window, _ in merged)])
        if end < close_time:
            context.drop(node.name, "late")
        else:
            try:
                new = folded(key, value, merged)
                store.values.check(new)  # before the merged sessions are removed
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                return failed(error, key, value, timestamp, headers)
            update(key, merged if start != end else [], Window(start, end), new, headers)
        if not on_update:
            emit_closed(close_time, headers)
        return None

    return process


def _session_update(node: Aggregate, wiring: Wiring) -> Callable[..., None]:
    """Return a function that replaces merged sessions by a new one."""
    store: SessionStore = wiring.context.store(node.store)
    forward, on_update = wiring.forward, node.emit == "update"

    def update(
        key: Any, merged: list[tuple[Window, Any]], session: Window, new: Any, headers: Headers
    ) -> None:
        for window, part in merged:
            store.remove(key, window)
            if on_update:
                forward(Windowed(key, window), Change(None, part), window.end, headers)
        store.put(key, session, new)
        if on_update:
            forward(Windowed(key, session), Change(new, None), session.end, headers)

    return update


def _closed_sessions(node: Aggregate, wiring: Wiring) -> Callable[[int, Headers], None]:
    """Return a function that emits the sessions which have closed since its last call."""
    context, forward = wiring.context, wiring.forward
    store, clock = context.store(node.store), context.clock(node.clock)

    def emit(close_time: int, headers: Headers) -> None:
        first, last = max(0, clock.emitted), close_time - 1
        if close_time <= clock.emitted or last < first:
            return
        with context.attribute_errors_to(None):
            for windowed, value in store.ending(first, last):
                forward(windowed, Change(value, None), windowed.window.end, headers)
        store.expire(last)
        clock.emitted = close_time

    return emit


def sliding_aggregate(node: Aggregate, wiring: Wiring) -> Forward:
    """Fold the records of a key that are at most ``difference`` apart.

    Each record defines two windows: the one that ends at it, and the one that begins right after
    it, which is created once a later record falls into it. A new window starts from the aggregate
    of an existing one: the window before it covers the records on its left, the window around it
    those on its right. A window's timestamp is that of its latest record, which locates the
    neighbouring record without storing the records themselves.
    """
    context, forward, failed = wiring.context, wiring.forward, wiring.failed
    windows = node.window
    assert isinstance(windows, SlidingWindows)
    store: WindowStore = context.store(node.store)
    clock = context.clock(node.clock)
    difference = windows.difference
    emit_closed = _closed_windows(node, wiring, span=difference + 1, keep=2 * difference)
    on_update = node.emit == "update"

    def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return context.drop(node.name)
        clock.time = max(clock.time, timestamp)
        close_time = clock.time - windows.grace
        if timestamp + difference < close_time:
            return context.drop(node.name, "late")
        update = _SlidingUpdate(node, store, key, value, timestamp, close_time)
        try:
            if timestamp < difference:
                update.run_early()
            else:
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


class _SlidingUpdate:
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

    def run_early(self) -> None:
        """Compute the changes of a record so early that the window which ends at it begins at 0."""
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
