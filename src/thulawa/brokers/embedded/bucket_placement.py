"""Buckets for writers of the log: its newest records, and records with partition and stamp."""

from collections.abc import Iterator
from typing import Protocol

from thulawa.core.types import ConsumerRecord, Headers, ProducerRecord
from thulawa.priority.placement import LOOK_BACK, Placing


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


def newest(log: Readable, topic: str) -> dict[int, list[Headers]]:
    """Give the headers of the newest records of each partition."""
    starts = log.start_offsets(topic)
    return {
        partition: [
            record.headers
            for record in log.read(topic, partition, max(starts[partition], end - LOOK_BACK), end)
        ]
        for partition, end in log.end_offsets(topic).items()
    }


def placed(placing: Placing, topic: str, record: ProducerRecord) -> ProducerRecord | None:
    """Give a record as it is to be written, None: not at all; its own partition it keeps."""
    if record.partition is not None:
        return record
    found = placing(topic, record.key, record.headers)
    return None if found is None else record._replace(partition=found[0], headers=tuple(found[1]))
