"""Windowed streams: aggregations per key and window."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from thulawa.core.callers import topology_error
from thulawa.core.records import Windowed
from thulawa.errors import ConfigurationError
from thulawa.streams import grouped as grouping
from thulawa.streams import ktable
from thulawa.streams.graph_builder import NameLike
from thulawa.streams.operator_options import Materialized
from thulawa.streams.stream_aggregations import StreamAggregations
from thulawa.streams.type_variables import A, K, V
from thulawa.topology.nodes import WindowKind
from thulawa.topology.windows import SessionWindows, SlidingWindows, TimeWindows


@dataclass(frozen=True, slots=True)
class EmitStrategy:
    """When the result of a window is emitted."""

    kind: Literal["update", "close"]

    @classmethod
    def on_window_update(cls) -> "EmitStrategy":
        """Emit every update."""
        return cls("update")

    @classmethod
    def on_window_close(cls) -> "EmitStrategy":
        """Emit one final result when the window closes."""
        return cls("close")


def check_windows(windows: object) -> None:
    """Raise `TopologyError` unless these are windows of an aggregation."""
    if not isinstance(windows, TimeWindows | SlidingWindows | SessionWindows):
        raise topology_error(
            f"windowed_by needs TimeWindows, SlidingWindows or SessionWindows, not {windows!r}"
        )


class _Windowed(StreamAggregations[K, V, Windowed[K]]):
    """A stream grouped by key and window."""

    def __init__(self, grouped: "grouping.KGroupedStream[K, V]", windows: WindowKind) -> None:
        self.grouped = grouped
        self.windows = windows

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Choose when results are emitted.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(TimeWindows.of(10))
        ...     return windows.emit_strategy(EmitStrategy.on_window_close()).count()
        >>> preview(program, ("a", "x", 1), ("a", "x", 2), ("b", "x", 10))
        [(Windowed(key='a', window=Window(start=0, end=10)), 2)]
        """
        if not isinstance(strategy, EmitStrategy):
            raise ConfigurationError(f"emit_strategy needs an EmitStrategy, not {strategy!r}")
        self.emit = strategy.kind
        return self


class TimeWindowedKStream(_Windowed[K, V]):
    """A stream grouped by key and time window, tumbling, hopping or sliding."""

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[Windowed[K], A]":
        """Fold the values of each key and window.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(TimeWindows.of(10).advance_by(5))
        ...     table = windows.aggregate(lambda: "", lambda k, v, text: text + v)
        ...     return table.to_stream(lambda w, text: w.window.start)
        >>> preview(program, ("a", "x", 7))
        [(0, 'x'), (5, 'x')]
        """
        return self._fold("KSTREAM-AGGREGATE-", initializer, aggregator, None, materialized, named)


class SessionWindowedKStream(_Windowed[K, V]):
    """A stream grouped by key and session."""

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A],
        merger: Callable[[K, A, A], A],
        materialized: Materialized[K, A] | None = None,
        *,
        named: NameLike = None,
    ) -> "ktable.KTable[Windowed[K], A]":
        """Fold the values of each session; ``merger`` merges sessions that a record connects.

        >>> def program(s):
        ...     windows = s.group_by_key().windowed_by(SessionWindows.of(10, grace=10))
        ...     table = windows.aggregate(lambda: 0, lambda k, v, n: n + v, lambda k, a, b: a + b)
        ...     return table.to_stream(lambda w, n: tuple(w.window))
        >>> preview(program, ("a", 1, 0), ("a", 2, 15), ("a", 4, 8))
        [([0, 0], 1), ([15, 15], 2), ([0, 0], None), ([15, 15], None), ([0, 15], 7)]
        """
        return self._fold(
            "KSTREAM-AGGREGATE-", initializer, aggregator, merger, materialized, named
        )
