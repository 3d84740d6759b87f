"""What a worker does for topics of Kafka: it reads its ranges itself, and counts them.

Apart from `tasks`, so that workers load Kafka's client only where they need it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from thulawa.brokers.embedded.arrow import counting
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import columns_of, read_between
from thulawa.health.columns import Messages, Rule
from thulawa.health.tasks import Range, counted_shares

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

    def _read(self, wanted: Range) -> Iterator[Messages]:
        topic, partition = wanted.place
        span = {partition: (wanted.since.offset, wanted.end)}
        for chunk in read_between(self.connection, topic, span, keep=True):
            offsets, times, values = columns_of(chunk)
            yield Messages(_column(offsets), pa.array(times, pa.int64()), values)


def _column(offsets: Sequence[int]) -> pa.Array:
    if isinstance(offsets, range):  # known without being looked at
        return pc.add(counting(len(offsets)), offsets.start)
    return pa.array(offsets, pa.int64())
