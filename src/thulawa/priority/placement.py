"""Where the records of a writer go: the partition of their bucket, with the stamp of its layout.

All writers use this, whatever they write to. Before a writer's first record goes to a topic its
newest records are looked at: if they were placed by another layout, the two do not agree, and
nothing is written. A record that was copied with its headers gets our stamp in place of the one it
came with: a stamp says where a record is, not where it has been.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thulawa.priority.buckets import STAMP, Buckets

__all__ = ["LOOK_BACK", "Newest", "Placement", "Placing", "agree", "unstamped"]

LOOK_BACK = 32
"""How many of the newest records of each partition a writer looks at."""

AnyHeaders = Iterable[tuple[str, Any]] | None
Newest = Mapping[int, Iterable[AnyHeaders]]
"""Of each partition of a topic the headers of its newest records, the newest last."""

_REMEMBERED = 65_536
_SHORT = 256


def agree(buckets: Buckets, newest: Newest) -> int:
    """Refuse a topic whose newest stamps are of another layout; count its partitions."""
    for records in newest.values():
        stamped = [one for one in records if any(name == STAMP for name, _ in one or ())]
        buckets.check_headers(stamped[-1:])
    return len(newest)


def unstamped(headers: AnyHeaders) -> list[tuple[str, Any]]:
    """Give headers without the stamp of where their record has been."""
    return [one for one in headers or () if one[0] != STAMP]


class Placement:
    """Chooses the partitions of one writer's records in a topic of so many partitions.

    Keys have their place. Records without a key take turns in their bucket: they have no order
    to keep, and would otherwise all be in its first partition.
    """

    __slots__ = ("_buckets", "_known", "_turn", "partitions")

    def __init__(self, buckets: Buckets, partitions: int, *, first: int = 0) -> None:
        buckets.layout(partitions)  # raises now where it cannot work
        self._buckets = buckets
        self._turn = first
        self._known: dict[Any, int | None] = {}
        self.partitions = partitions

    def __call__(self, key: Any) -> int | None:
        """Give the partition of a record with this key; None: it is dropped."""
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
    """Gives the records of one writer their partitions and their stamps.

    ``newest`` reads a topic. ``dropped`` counts the records of unknown buckets that were dropped
    because the buckets say so.
    """

    def __init__(
        self, buckets: Buckets, newest: Callable[[str], Newest], *, first: int = 0
    ) -> None:
        self._buckets = Buckets.of(buckets)  # a dict is not
        self._newest = newest
        self._first = first
        self._stamp = self._buckets.stamp
        self._placements: dict[str, Placement] = {}
        self.dropped = 0

    def __call__(
        self, topic: str, key: Any, headers: AnyHeaders
    ) -> tuple[int, list[tuple[str, Any]]] | None:
        """Give the partition and the headers of a record; None: it is dropped."""
        placement = self._placements.get(topic)
        if placement is None:
            partitions = agree(self._buckets, self._newest(topic))
            placement = Placement(self._buckets, partitions, first=self._first)
            self._placements[topic] = placement
        place = placement(key)
        if place is None:
            self.dropped += 1
            return None
        return place, [*unstamped(headers), self._stamp]

    def expect(self, topic: str, partitions: int | None = None) -> None:
        """Look at a topic anew before its next record, if it had not as many partitions."""
        known = self._placements.get(topic)
        if known is not None and known.partitions != partitions:
            del self._placements[topic]
