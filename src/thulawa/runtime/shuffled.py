"""The records that a task receives through repartitions from other tasks in a batch.

A batch may span hours of stream time. If a task processed all records of one upstream task and then
those of the next, the first would advance its stream time to the end of the batch, and the others
would be late. It therefore merges the upstream tasks' records by timestamp, as tasks do with their
partitions. The records of one upstream task stay in order.

If a repartition is a topic, a header of each record names the task that sent it.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter

from thulawa.core.records import Headers
from thulawa.runtime.blocks import RawRecord

_SENDER = "thulawa.sender"


def with_sender(sender: str, headers: Headers) -> Headers:
    """Return the headers with the sending task added, for a record of a repartition topic."""
    return (*headers, (_SENDER, sender.encode()))


def split_by_sender(records: Iterable[RawRecord]) -> dict[bytes | None, list[RawRecord]]:
    """Group the records of a repartition topic by sender, and remove the sender's header."""
    senders: dict[bytes | None, list[RawRecord]] = {}
    for offset, timestamp, key, value, headers in records:
        sender = None
        if headers and headers[-1][0] == _SENDER:
            sender, headers = headers[-1][1], headers[:-1]  # noqa: PLW2901
        senders.setdefault(sender, []).append((offset, timestamp, key, value, headers))
    return senders


class ShuffledRecords:
    """Records of repartitions, by topic-partition and sending task."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], dict[Hashable, list[RawRecord]]] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(
        self, topic: str, partition: int, sender: Hashable, records: Iterable[RawRecord]
    ) -> None:
        """Add the records of a sending task, in the order in which it sent them."""
        senders = self._records.setdefault((topic, partition), {})
        senders.setdefault(sender, []).extend(records)

    def topic_partitions(self) -> list[tuple[str, int]]:
        """Return the topic-partitions that have records."""
        return list(self._records)

    def take(self, topic: str, partition: int) -> Sequence[RawRecord]:
        """Remove and return the records of a topic-partition, in the order to process them."""
        return merge_by_time([*self._records.pop((topic, partition), {}).values()])


def merge_by_time(sequences: Sequence[Sequence[RawRecord]]) -> Sequence[RawRecord]:
    """Merge sequences: take the head with the lowest timestamp; each sequence stays in order.

    >>> merge_by_time([[(0, 5, "a", 1, ()), (1, 3, "a", 2, ())], [(0, 4, "b", 3, ())]])
    [(0, 4, 'b', 3, ()), (0, 5, 'a', 1, ()), (1, 3, 'a', 2, ())]
    """
    if len(sequences) == 1:
        return sequences[0]
    return list(heapq.merge(*sequences, key=itemgetter(1)))
