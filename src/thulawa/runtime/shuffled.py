"""The records that a task gets, within a batch, through repartitions from other tasks.

A batch may span hours of stream time. If a task took all records of one upstream task and then
all of the next, the first would advance its stream time to the end of the batch, and the others
would be late. So it takes, of the upstream tasks' next records, the one with the lowest timestamp,
as tasks do with the partitions that they read. The records of one upstream task stay in order.

Where a repartition is a topic, each of its records names the task that has sent it in a header.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence

from thulawa.core.records import Headers
from thulawa.runtime.blocks import RawRecord

__all__ = ["ShuffledRecords", "merge_by_time", "split_by_sender", "with_sender"]

_SENDER = "thulawa.sender"


def with_sender(sender: str, headers: Headers) -> Headers:
    """Return the headers of a record in a repartition topic."""
    return (*headers, (_SENDER, sender.encode()))


def split_by_sender(records: Iterable[RawRecord]) -> dict[bytes | None, list[RawRecord]]:
    """Return the records of a repartition topic by sender, in order, with their own headers."""
    senders: dict[bytes | None, list[RawRecord]] = {}
    for offset, timestamp, key, value, headers in records:
        sender = None
        if headers and headers[-1][0] == _SENDER:
            sender, headers = headers[-1][1], headers[:-1]  # noqa: PLW2901
        senders.setdefault(sender, []).append((offset, timestamp, key, value, headers))
    return senders


class ShuffledRecords:
    """Records of repartitions, by topic-partition and by the task that sent them."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], dict[Hashable, list[RawRecord]]] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(
        self, topic: str, partition: int, sender: Hashable, records: Iterable[RawRecord]
    ) -> None:
        """Add records that a task has sent, in the order in which it has sent them."""
        senders = self._records.setdefault((topic, partition), {})
        senders.setdefault(sender, []).extend(records)

    def topic_partitions(self) -> list[tuple[str, int]]:
        """Return where there are records."""
        return list(self._records)

    def take(self, topic: str, partition: int) -> Sequence[RawRecord]:
        """Remove the records of a topic-partition; return them as they are to be processed."""
        return merge_by_time([*self._records.pop((topic, partition), {}).values()])


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
