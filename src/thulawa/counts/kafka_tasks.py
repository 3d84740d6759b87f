"""What a worker does for topics of Kafka: it reads its ranges itself, and counts them.

Apart from `tasks`, so that workers load Kafka's client only where they need it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from thulawa.counts.columns import Rule
from thulawa.counts.tasks import Range, counted_shares
from thulawa.kafka.connection import Connection
from thulawa.kafka.reading import read_between

__all__ = ["CountKafka"]


@dataclass(frozen=True, slots=True)
class CountKafka:
    """Counts ranges of Kafka's topics, committed messages only; its rows are numbers of shares."""

    connection: Connection
    shares: Sequence[Sequence[Range]]
    rule: Rule

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give what the messages of the shares add to each cell."""
        yield counted_shares(batches, self.shares, self.rule, self._read)

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        topic, partition = wanted.place
        span = {partition: (wanted.since.offset, wanted.end)}
        for chunk in read_between(self.connection, topic, span, keep=True):
            yield pa.record_batch(
                {
                    "offset": pa.array([one.offset() for one in chunk], pa.int64()),
                    "timestamp": pa.array([one.timestamp()[1] for one in chunk], pa.int64()),
                    "value": pa.array([one.value() for one in chunk], pa.binary()),
                }
            )
