"""Step two: totals over all partitions, summed from those of each.

The compacted topic holds the totals of every partition, whoever counts it. To merge is to read
it and add: a few records a second, where a repartition topic would carry every message.

A sum is final as soon as its window has expired in one partition of its topic, since that
partition's part is then on its way out of the topic: what other partitions still count in this
window changes their own totals, and no longer the sum. Windows expire between two readings: what
is read together still counts. Who reads for the first time may find parts gone, and tells no sum of
a window that has expired by the end of what it reads.
"""

from collections.abc import Iterable

from thulawa.health.changelog import CountsChangelog
from thulawa.health.model import Cell, Count, decode

__all__ = ["Merging", "merged"]


def merged(counts: Iterable[Count]) -> list[Count]:
    """Sum totals over partitions.

    >>> sums = merged(
    ...     [Count(Cell("tx", 0, 0, "valid"), 4, 5), Count(Cell("tx", 1, 0, "valid"), 3, 4)]
    ... )
    >>> sums
    [Count(cell=Cell(topic='tx', partition=None, window=0, status='valid'), value=7, offset=0)]
    """
    sums: dict[Cell, int] = {}
    for cell, value, _ in counts:
        whole = cell._replace(partition=None)
        sums[whole] = sums.get(whole, 0) + (value or 0)
    return [
        Count(whole, value, 0) for whole, value in sorted(sums.items(), key=lambda kv: kv[0][2:])
    ]


class Merging:
    """Sums that follow the topic."""

    def __init__(self, expire: int) -> None:
        self._expire = expire
        self._parts: dict[Cell, dict[Cell, Count]] = {}
        self._newest: dict[str, int] = {}
        self._since: dict[int, int] = {}
        self._first = True

    def follow(self, changelog: CountsChangelog) -> list[Count]:
        """Read on to the end of the topic; give the sums that have changed."""
        changed: set[Cell] = set()
        ended: set[Cell] = set()
        newest = dict(self._newest)
        for stored in changelog.read(self._since):
            count = decode(stored.key, stored.value)
            whole = count.cell._replace(partition=None)
            if count.value is None:
                ended.add(whole)
            elif self._take(count, whole):
                changed.add(whole)
                newest[whole.topic] = max(newest.get(whole.topic, whole.window), whole.window)
        self._newest = newest
        if self._first:
            changed = {whole for whole in changed if not self._final(whole)}
            self._first = False
        sums = merged(part for whole in changed for part in self._parts[whole].values())
        for whole in ended:
            self._parts.pop(whole, None)
        return sums

    def _take(self, count: Count, whole: Cell) -> bool:
        """Put a total in the place of the one before; tell whether its sum has changed."""
        if self._final(whole):
            return False
        parts = self._parts.setdefault(whole, {})
        before = parts.get(count.cell)
        if before is not None and count.offset < before.offset:
            return False
        parts[count.cell] = count
        return True

    def _final(self, whole: Cell) -> bool:
        newest = self._newest.get(whole.topic)
        return newest is not None and newest - whole.window > self._expire
