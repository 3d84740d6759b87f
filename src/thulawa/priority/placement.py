"""Place the records of a writer in the partitions of their buckets, and stamp them.

All writers use this, whatever they write to. Before a writer's first record, the newest records of
the topic are checked: if another layout placed them, nothing is written. A record that was copied
with its headers gets a new stamp in place of the old one: a stamp describes where a record is, not
where it was.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thulawa.priority.buckets import STAMP, Buckets

LOOK_BACK = 32
"""The number of newest records of each partition that a writer checks."""

AnyHeaders = Iterable[tuple[str, Any]] | None
Newest = Mapping[int, Iterable[AnyHeaders]]
"""The headers of the newest records of each partition, the newest last."""

_REMEMBERED = 65_536
_SHORT = 256


def check_newest(buckets: Buckets, newest: Newest) -> int:
    """Return the number of partitions; raise if the newest stamps are of another layout."""
    for records in newest.values():
        stamped = [one for one in records if any(name == STAMP for name, _ in one or ())]
        buckets.check_headers(stamped[-1:])
    return len(newest)


def unstamped(headers: AnyHeaders) -> list[tuple[str, Any]]:
    """Return headers without a stamp."""
    return [one for one in headers or () if one[0] != STAMP]


class Placement:
    """Chooses the partitions of one writer's records in a topic.

    A key always has the same partition. Records without a key are distributed round-robin over
    their bucket: they have no order to preserve, and would otherwise all be in its first partition.
    """

    __slots__ = ("_buckets", "_known", "_turn", "partitions")

    def __init__(self, buckets: Buckets, partitions: int, *, first: int = 0) -> None:
        buckets.layout(partitions)  # raises for too few partitions
        self._buckets = buckets
        self._turn = first
        self._known: dict[Any, int | None] = {}
        self.partitions = partitions

    def __call__(self, key: Any) -> int | None:
        """Return the partition of a record with this key; None if it is dropped."""
        known = self._known
        if key in known:
            return known[key]
        if key is None:
            places = self._buckets.places(key, self.partitions)
            self._turn += 1
            return places[self._turn % len(places)] if places else None
        place = self._buckets.partition(key, self.partitions)
        if isinstance(key, str | bytes) and len(key) <= _SHORT:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = place
        return place


class Placing:
    """Chooses partitions and headers for the records of one writer.

    ``newest`` reads a topic. ``dropped`` counts the dropped records of unknown buckets.
    """

    def __init__(
        self, buckets: Buckets, newest: Callable[[str], Newest], *, first: int = 0
    ) -> None:
        self._buckets = Buckets.of(buckets)  # raises for anything else
        self._newest = newest
        self._first = first
        self._stamp = self._buckets.stamp
        self._placements: dict[str, Placement] = {}
        self.dropped = 0

    def __call__(
        self, topic: str, key: Any, headers: AnyHeaders
    ) -> tuple[int, list[tuple[str, Any]]] | None:
        """Return the partition and the headers of a record; None if it is dropped."""
        placement = self._placements.get(topic)
        if placement is None:
            partitions = check_newest(self._buckets, self._newest(topic))
            placement = Placement(self._buckets, partitions, first=self._first)
            self._placements[topic] = placement
        place = placement(key)
        if place is None:
            self.dropped += 1
            return None
        return place, [*unstamped(headers), self._stamp]

    def expect(self, topic: str, partitions: int | None = None) -> None:
        """Check a topic again before its next record if its number of partitions has changed."""
        known = self._placements.get(topic)
        if known is not None and known.partitions != partitions:
            del self._placements[topic]
