"""Limit how far a micro-batch reads partitions ahead of others in event time.

A task merges the records of its partitions by timestamp. Records of one partition beyond the time
that another has reached are buffered in the task's state, which is written with every micro-batch.
So when the record limit applies, a partition that is ahead is read no further than its share, and
the rest goes to the one that is behind. Kafka Streams pauses partitions with many buffered records
for the same reason.

It is an estimate from the timestamps of the next records when micro-batches were planned: records
that are read too early are buffered, and the order is right in any case.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from thulawa.spark.connectors.bucket_options import Place

__all__ = ["Pace"]

_REMEMBERED = 100  # micro-batches


class Pace:
    """Groups of partitions that are read at one pace, and where micro-batches began in them."""

    def __init__(self, groups: Iterable[Sequence[Place]]) -> None:
        self._groups = [tuple(group) for group in groups if len(group) > 1]
        self._history: dict[Place, deque[tuple[int, int]]] = {}

    def watched(self, waiting: Mapping[Place, int]) -> list[Place]:
        """Return the partitions whose next timestamp is needed, given the unread records."""
        return list(
            dict.fromkeys(
                place
                for group in self._groups
                for place in group
                if sum(bool(waiting.get(one)) for one in group) > 1 and waiting.get(place)
            )
        )

    def most(
        self, position: Mapping[Place, int], heads: Mapping[Place, int], share: int
    ) -> dict[Place, int]:
        """Return the most records that may be read of partitions that are ahead.

        ``heads`` are the times of the next records, at ``position``; ``share`` is how many records
        of a partition may be buffered.
        """
        for place, time in heads.items():
            self._history.setdefault(place, deque(maxlen=_REMEMBERED)).append(
                (position[place], time)
            )
        found: dict[Place, int] = {}
        for group in self._groups:
            times = {place: heads[place] for place in group if place in heads}
            if len(times) < 2:  # noqa: PLR2004 one partition waits for no other
                continue
            earliest = min(times.values())
            for place, time in times.items():
                if time > earliest:
                    ahead = self._ahead(place, earliest)
                    found[place] = min(found.get(place, share), max(0, share - ahead))
        return found

    def _ahead(self, place: Place, time: int) -> int:
        """Return an estimate of the records that were read of a partition beyond a time."""
        points = list(self._history[place])
        upto, later = points[-1]
        for offset, at in reversed(points[:-1]):
            if at <= time:
                part = (later - time) / (later - at) if later > at else 0.0
                return points[-1][0] - upto + round((upto - offset) * part)
            upto, later = offset, at
        return points[-1][0] - upto
