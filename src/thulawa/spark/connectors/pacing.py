"""How far a batch may read partitions ahead of others whose records come first.

A task takes the records of its partitions in the order of their time. What a batch reads of one
partition beyond the time to which another has been read waits in the task's state, and is written
there with every batch. So, where a limit binds, a partition that is ahead is read no further than
its share of the limit, and what it leaves goes to the one that is behind. As Kafka Streams pauses
partitions with many buffered records.

It is an estimate, by the times of the next records when batches were planned: what is read too
early waits, and is in order all the same.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from thulawa.spark.connectors.bucket_options import Place

__all__ = ["Pace"]

_REMEMBERED = 100  # batches


class Pace:
    """Partitions that are read together, by groups, and where batches began in them."""

    def __init__(self, groups: Iterable[Sequence[Place]]) -> None:
        self._groups = [tuple(group) for group in groups if len(group) > 1]
        self._history: dict[Place, deque[tuple[int, int]]] = {}

    def watched(self, waiting: Mapping[Place, int]) -> list[Place]:
        """Return the partitions whose next record's time is needed, where these wait."""
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
        """Return how many records may be read of partitions that are ahead.

        ``heads`` are the times of the next records, at ``position``; ``share`` is how many records
        of a partition may wait.
        """
        for place, time in heads.items():
            self._history.setdefault(place, deque(maxlen=_REMEMBERED)).append(
                (position[place], time)
            )
        found: dict[Place, int] = {}
        for group in self._groups:
            times = {place: heads[place] for place in group if place in heads}
            if len(times) < 2:  # noqa: PLR2004 one has nobody to wait for
                continue
            earliest = min(times.values())
            for place, time in times.items():
                if time > earliest:
                    ahead = self._ahead(place, earliest)
                    found[place] = min(found.get(place, share), max(0, share - ahead))
        return found

    def _ahead(self, place: Place, time: int) -> int:
        """Estimate how many records were read of a partition that are later than a time."""
        points = list(self._history[place])
        upto, later = points[-1]
        for offset, at in reversed(points[:-1]):
            if at <= time:
                part = (later - time) / (later - at) if later > at else 0.0
                return points[-1][0] - upto + round((upto - offset) * part)
            upto, later = offset, at
        return points[-1][0] - upto
