"""The records that a task gets from the tasks of earlier stages.

A batch may span hours of stream time. If a task took all records of one upstream task and then
all of the next, the first would advance its stream time to the end of the batch, and the others
would be late. So it takes, of the upstream tasks' next records, the one with the lowest timestamp,
as tasks do with the partitions that they read. The records of one upstream task stay in order.
"""

import heapq
from collections.abc import Iterator, Sequence

from thulawa.runtime.blocks import RawRecord
from thulawa.spark.streams.wire import Packed, unpack_records

__all__ = ["Shuffled", "merge_by_time"]


class Shuffled:
    """Records from earlier stages, by partition and by the task that sent them."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], dict[str, list[RawRecord]]] = {}

    def add(self, row: Packed) -> None:
        """Add a row; rows come in the order of their places."""
        senders = self._records.setdefault((row.topic, row.part), {})
        senders.setdefault(row.place, []).extend(unpack_records(row.data))

    def merged(self) -> Iterator[tuple[tuple[str, int], Sequence[RawRecord]]]:
        """Yield the records of each partition in the order in which they are processed."""
        for partition, senders in self._records.items():
            yield partition, merge_by_time([*senders.values()])


def merge_by_time(sequences: Sequence[Sequence[RawRecord]]) -> Sequence[RawRecord]:
    """Return all records: of the heads of the sequences always the one with the lowest timestamp.

    >>> merge_by_time([[(0, 5, "a", 1, ()), (1, 3, "a", 2, ())], [(0, 4, "b", 3, ())]])
    [(0, 4, 'b', 3, ()), (0, 5, 'a', 1, ()), (1, 3, 'a', 2, ())]
    """
    if len(sequences) == 1:
        return sequences[0]
    heads = [(records[0][1], number, 0) for number, records in enumerate(sequences) if records]
    heapq.heapify(heads)
    merged: list[RawRecord] = []
    while heads:
        _, number, place = heads[0]
        records = sequences[number]
        merged.append(records[place])
        if place + 1 < len(records):
            heapq.heapreplace(heads, (records[place + 1][1], number, place + 1))
        else:
            heapq.heappop(heads)
    return merged
