"""Aggregation over session windows, which records extend and merge."""

from typing import Any

from thulawa.core.records import Change, Headers, Window, Windowed
from thulawa.runtime.aggregates import start_value
from thulawa.runtime.context import Failed, Forward, TaskContext
from thulawa.state.window_stores import SessionStore
from thulawa.topology.nodes import Aggregate
from thulawa.topology.windows import SessionWindows


def session_aggregate(
    node: Aggregate, context: TaskContext, forward: Forward, failed: Failed
) -> Forward:
    """Fold the records of a key within each session.

    A record merges the open sessions within the gap into one. The merged sessions are retracted
    first, unless the result is a session of a single timestamp.
    """
    return _SessionAggregate(node, context, forward, failed).process


class _SessionAggregate:
    def __init__(
        self, node: Aggregate, context: TaskContext, forward: Forward, failed: Failed
    ) -> None:
        assert isinstance(node.window, SessionWindows)
        assert node.merge is not None
        self._name = node.name
        self._context = context
        self._forward = forward
        self._failed = failed
        self._store: SessionStore = context.store(node.store)
        self._clock = context.clock(node.clock)
        self._initial = start_value(node)
        self._fold = node.aggregator
        self._merge = node.merge
        self._gap = node.window.gap
        self._grace = node.window.grace
        self._on_update = node.emit == "update"

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Process one record."""
        if key is None:
            return self._context.drop(self._name)
        self._clock.time = max(self._clock.time, timestamp)
        close_time = self._clock.time - self._grace - self._gap
        found = self._store.overlapping(key, timestamp - self._gap, timestamp + self._gap)
        start = min([timestamp, *(window.start for window, _ in found)])
        end = max([timestamp, *(window.end for window, _ in found)])
        if end < close_time:
            self._context.drop(self._name, "late")
        else:
            try:
                new = self._folded(key, value, [part for _, part in found])
                self._store.values.check(new)  # before the merged sessions are removed
            except Exception as error:  # noqa: BLE001 the handler decides about any error
                return self._failed(error, key, value, timestamp, headers)
            self._update(key, found, Window(start, end), new, headers)
        if not self._on_update:
            self._emit_closed(close_time, headers)
        return None

    def _folded(self, key: Any, value: Any, parts: list[Any]) -> Any:
        result = self._initial()
        for part in parts:
            result = self._merge(key, result, part)
        return self._fold(key, value, result)

    def _update(
        self,
        key: Any,
        found: list[tuple[Window, Any]],
        session: Window,
        new: Any,
        headers: Headers,
    ) -> None:
        if session.start != session.end:
            for window, part in found:
                self._store.remove(key, window)
                if self._on_update:
                    change = Change(None, part)
                    self._forward(Windowed(key, window), change, window.end, headers)
        self._store.put(key, session, new)
        if self._on_update:
            self._forward(Windowed(key, session), Change(new, None), session.end, headers)

    def _emit_closed(self, close_time: int, headers: Headers) -> None:
        first, last = max(0, self._clock.emitted), close_time - 1
        if close_time <= self._clock.emitted or last < first:
            return
        with self._context.attribute_errors_to(None):
            for windowed, value in self._store.ending(first, last):
                self._forward(windowed, Change(value, None), windowed.window.end, headers)
        self._store.expire(last)
        self._clock.emitted = close_time
