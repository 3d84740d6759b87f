"""The input of a run: three topics with common event times, generated from a seed."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from thulawa.brokers.embedded import Log, ProducerRecord

__all__ = ["PARTITIONS", "TOPICS", "Workload"]

PARTITIONS = 2
TOPICS = ("orders", "payments", "profiles")
_START = 1_700_000_000_000
_STEP = 10  # ms from one record to the next
_DISORDER = 3_000  # ms by which most records may be late
_LATE = 20_000  # ms by which one record in fifty may be late


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The records of a run; equal options generate equal records."""

    records: int
    keys: int
    seed: int

    def topics(self) -> dict[str, list[ProducerRecord]]:
        """Return the records of each topic: as many orders as payments, half as many profiles."""
        draw = random.Random(self.seed)
        topics: dict[str, list[ProducerRecord]] = {topic: [] for topic in TOPICS}
        for number in range(self.records):
            topic = draw.choices(TOPICS, (2, 2, 1))[0]
            late = draw.randrange(_LATE if draw.random() < 0.02 else _DISORDER)
            customer = int(self.keys * draw.random() ** 2)  # some customers buy more than others
            value = {"id": number, "item": f"i{draw.randrange(self.keys)}"}
            is_deleted = topic == "profiles" and draw.random() < 0.05
            topics[topic].append(
                ProducerRecord(
                    key=f"c{customer}".encode(),
                    value=None if is_deleted else json.dumps(value).encode(),
                    timestamp=_START + _LATE + number * _STEP - late,
                )
            )
        return topics

    def waves(self, count: int) -> Iterator[dict[str, list[ProducerRecord]]]:
        """Yield the records in ``count`` parts, each with its share of every topic."""
        topics = self.topics()
        for wave in range(count):
            yield {
                topic: records[len(records) * wave // count : len(records) * (wave + 1) // count]
                for topic, records in topics.items()
            }

    def create_topics(self, log: Log) -> None:
        """Create the topics without records."""
        for topic in TOPICS:
            log.create_topic(topic, partitions=PARTITIONS)
