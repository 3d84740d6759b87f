"""Sinks: where counts are published, beside the topic.

A sink receives the totals of each round after they are committed to the topic. The instance that
acquires a partition sends its last totals again, because the one before may have died in between.
So a sink must replace its value of a cell: totals are absolute, and writing one twice changes
nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from thulawa.health.counts import Count


@runtime_checkable
class CountSink(Protocol):
    """Receives totals."""

    def put(self, counts: Sequence[Count]) -> None:
        """Store totals; raise if they could not be stored."""

    def close(self) -> None:
        """Close connections and files."""


@runtime_checkable
class SeededSink(Protocol):
    """A sink that publishes increments, and so needs the totals to start from."""

    def seed(self, counts: Sequence[Count]) -> None:
        """Accept the totals of partitions that this instance acquires, before it counts them."""


AnySink: TypeAlias = CountSink | Callable[[Sequence[Count]], object]


def put_all(sinks: Sequence[AnySink], counts: Sequence[Count]) -> None:
    """Pass totals to all sinks, one after the other."""
    for sink in sinks if counts else ():
        if isinstance(sink, CountSink):
            sink.put(counts)
        else:
            sink(counts)


def seed_all(sinks: Sequence[object], counts: Sequence[Count]) -> None:
    """Pass totals to the sinks that publish increments."""
    for sink in sinks:
        if isinstance(sink, SeededSink):
            sink.seed(counts)
