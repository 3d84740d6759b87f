"""The inputs of a run: three topics with one line of time, made anew from a seed."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from thulawa.brokers.embedded import Log, ProducerRecord

__all__ = ["PARTITIONS", "TOPICS", "World"]

PARTITIONS = 2
TOPICS = ("orders", "payments", "profiles")
_BEGIN = 1_700_000_000_000
_STEP = 10  # ms from one record to the next
_DISORDER = 3_000  # ms that a record may be late, as a rule
_LATE = 20_000  # and one in fifty


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a run works on; the same options give the same records."""

    records: int
    keys: int
    seed: int

    def topics(self) -> dict[str, list[ProducerRecord]]:
        """Give the records of each topic: orders and payments alike, profiles half as many."""
        draw = random.Random(self.seed)
        made: dict[str, list[ProducerRecord]] = {topic: [] for topic in TOPICS}
        for number in range(self.records):
            topic = draw.choices(TOPICS, (2, 2, 1))[0]
            late = draw.randrange(_LATE if draw.random() < 0.02 else _DISORDER)
            customer = int(self.keys * draw.random() ** 2)  # some buy more than others
            value = {"id": number, "item": f"i{draw.randrange(self.keys)}"}
            gone = topic == "profiles" and draw.random() < 0.05
            made[topic].append(
                ProducerRecord(
                    key=f"c{customer}".encode(),
                    value=None if gone else json.dumps(value).encode(),
                    timestamp=_BEGIN + _LATE + number * _STEP - late,
                )
            )
        return made

    def waves(self, count: int) -> Iterator[dict[str, list[ProducerRecord]]]:
        """Cut the topics into so many parts, each with its share of every topic."""
        made = self.topics()
        for wave in range(count):
            yield {
                topic: records[len(records) * wave // count : len(records) * (wave + 1) // count]
                for topic, records in made.items()
            }

    def create(self, log: Log) -> None:
        """Make the topics."""
        for topic in TOPICS:
            log.create_topic(topic, partitions=PARTITIONS)
