"""Limit how far a micro-batch reads partitions ahead of others in event time.

A task merges the records of its partitions by timestamp. Records of one partition beyond the time
that another has reached are buffered in the task's state, which is written with every micro-batch.
So when the record limit applies, a partition that is ahead is read no further than its share, and
the rest goes to the one that is behind. Kafka Streams pauses partitions with many buffered records
for the same reason.

It is an estimate from the timestamps of the next records when micro-batches were planned: records
that are read too early are buffered, and the order is right in any case.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from thulawa.core.types import TopicPartition
from thulawa.spark.connectors.offsets import PartitionOffsets

_REMEMBERED = 100  # micro-batches


class Pace:
    """Groups of partitions that are read at one pace, and where micro-batches began in them."""

    def __init__(self, groups: Iterable[Sequence[TopicPartition]]) -> None:
        self._groups = [group for group in groups if len(group) > 1]
        self._history: dict[TopicPartition, deque[tuple[int, int]]] = defaultdict(
            partial(deque, maxlen=_REMEMBERED)
        )

    def watched(self, waiting: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions whose next timestamp is needed, given the unread records."""
        found: dict[TopicPartition, None] = {}
        for group in self._groups:
            unread = [at for at in group if waiting.get(at)]
            if len(unread) > 1:
                found |= dict.fromkeys(unread)
        return list(found)

    def most(
        self, position: PartitionOffsets, heads: Mapping[TopicPartition, int], share: int
    ) -> PartitionOffsets:
        """Return the most records that may be read of partitions that are ahead.

        ``heads`` are the times of the next records, at ``position``; ``share`` is how many records
        of a partition may be buffered.
        """
        for at, time in heads.items():
            self._history[at].append((position[at], time))
        found: PartitionOffsets = {}
        for group in self._groups:
            times = {at: heads[at] for at in group if at in heads}
            earliest = min(times.values(), default=0)
            for at, time in times.items():
                if time > earliest:
                    ahead = self._ahead(at, earliest)
                    found[at] = min(found.get(at, share), max(0, share - ahead))
        return found

    def _ahead(self, at: TopicPartition, time: int) -> int:
        """Return an estimate of the records that were read of a partition beyond a time."""
        *earlier, (position, later) = self._history[at]
        end = position
        for offset, begun in reversed(earlier):
            if begun <= time:
                part = (later - time) / (later - begun) if later > begun else 0.0
                return position - end + round((end - offset) * part)
            end, later = offset, begun
        return position - end
