"""Sum totals over the partitions of a topic.

The compacted topic has the totals of every partition, whichever instance counts it. Merging reads
that topic and adds: a few records a second, where a repartition topic would carry every message.

A sum is final as soon as its window has expired in one partition of its topic, because the
tombstone removes that partition's total. Other partitions may still count messages of this window;
that changes their own totals, but not the sum. Expiry takes effect between two reads: totals that
are read together are all summed. On the first read some totals may be missing already, so windows
that have expired by its end get no sum.
"""

from collections.abc import Iterable

from thulawa.health.changelog import CountsChangelog
from thulawa.health.counts import Cell, Count, decode


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
    """Sums over partitions, updated from the topic."""

    def __init__(self, expire: int) -> None:
        self._expire = expire
        self._parts: dict[Cell, dict[Cell, Count]] = {}
        self._newest: dict[str, int] = {}
        self._since: dict[int, int] = {}
        self._first = True

    def follow(self, changelog: CountsChangelog) -> list[Count]:
        """Read the topic from the last position to its end; return the sums that changed."""
        changed: set[Cell] = set()
        ended: set[Cell] = set()
        newest = dict(self._newest)
        for stored in changelog.read(self._since):
            count = decode(stored.key, stored.value)
            whole = count.cell._replace(partition=None)
            if count.value is None:
                ended.add(whole)
            elif not self._final(whole):
                parts = self._parts.setdefault(whole, {})
                before = parts.get(count.cell)
                if before is None or count.offset >= before.offset:
                    parts[count.cell] = count
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

    def _final(self, whole: Cell) -> bool:
        return self._newest.get(whole.topic, whole.window) - whole.window > self._expire
