"""Buckets for writers of the log: records get the partition of their bucket, and its stamp.

Before a writer's first record goes to a topic, the newest record of each partition is looked at:
if it was placed by another layout, the two do not agree, and nothing is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from thulawa.core.buckets import Buckets, Placement
from thulawa.log.records import ConsumerRecord, ProducerRecord

__all__ = ["Placing", "Readable", "agree"]


class Readable(Protocol):
    """What is needed of a log."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition, the lowest offset that retention has left."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition, the offset that its next record will have."""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        limit: int | None = None,
    ) -> Iterator[ConsumerRecord]:
        """Give the records of a partition with offsets in [start, end)."""


def agree(log: Readable, topic: str, buckets: Buckets) -> int:
    """Refuse a topic whose newest records were placed by another layout; count its partitions."""
    starts, ends = log.start_offsets(topic), log.end_offsets(topic)
    newest = [
        record.headers
        for partition, end in ends.items()
        for record in log.read(topic, partition, max(starts[partition], end - 1), end)
    ]
    buckets.check_headers(newest)
    return len(ends)


class Placing:
    """Gives the records of one writer their partitions and their stamps.

    A record that names its partition is left as it is. ``dropped`` counts the records of unknown
    buckets that were dropped because the buckets say so.
    """

    def __init__(self, buckets: Buckets, agreed: Callable[[str], int], *, first: int = 0) -> None:
        self._buckets = buckets
        self._agreed = agreed
        self._stamp = buckets.stamp
        self._first = first
        self._placements: dict[str, Placement] = {}
        self.dropped = 0

    def one(self, topic: str, record: ProducerRecord) -> ProducerRecord | None:
        """Give the record as it is to be written; None: not at all."""
        if record.partition is not None:
            return record
        placement = self._placements.get(topic)
        if placement is None:
            placement = Placement(self._buckets, self._agreed(topic), first=self._first)
            self._placements[topic] = placement
        place = placement(record.key)
        if place is None:
            self.dropped += 1
            return None
        return record._replace(partition=place, headers=(*record.headers, self._stamp))

    def all(
        self, records: Mapping[str, Iterable[ProducerRecord]]
    ) -> dict[str, list[ProducerRecord]]:
        """Do so for records of several topics."""
        return {
            topic: [placed for one in some if (placed := self.one(topic, one)) is not None]
            for topic, some in records.items()
        }
