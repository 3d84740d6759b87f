"""Where counts are shown, beside the topic.

A sink is handed the totals of each batch after they are committed to the topic. A batch that is not
known to have arrived is handed over again by whoever takes the partition over, so a sink must
replace what it has for a cell: totals are absolute, and putting one twice changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from thulawa.health.model import Count

__all__ = ["AnySink", "Seeded", "Sink", "put_all", "seed_all"]


@runtime_checkable
class Sink(Protocol):
    """Takes totals."""

    def put(self, counts: Sequence[Count]) -> None:
        """Take totals; returns when they are stored, raises when they are not."""

    def close(self) -> None:
        """Let go of what the sink holds."""


@runtime_checkable
class Seeded(Protocol):
    """A sink that shows what changes, and so must know where totals stand to begin with."""

    def seed(self, counts: Sequence[Count]) -> None:
        """Take the totals of partitions that this instance takes over, before those it counts."""


AnySink: TypeAlias = Sink | Callable[[Sequence[Count]], object]


def put_all(sinks: Sequence[AnySink], counts: Sequence[Count]) -> None:
    """Hand totals to all sinks, one after the other."""
    if not counts:
        return
    for sink in sinks:
        if isinstance(sink, Sink):
            sink.put(counts)
        else:
            sink(counts)


def seed_all(sinks: Sequence[object], counts: Sequence[Count]) -> None:
    """Hand totals to the sinks that want to know where they begin."""
    for sink in sinks:
        if isinstance(sink, Seeded):
            sink.seed(counts)
