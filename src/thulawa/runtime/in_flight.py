"""Input records whose processing has not finished, by partition.

A continuous host does not wait for async calls before it commits. It commits, for each partition,
the *frontier*, below which every record is finished, and the offsets above it that are not. After a
restart it reads from the frontier and processes only those and what follows.
"""

from thulawa.core.types import TopicPartition


class InFlight:
    """Count the deferred calls of each input record; a record without any is finished.

    ``count`` is their number, with those of punctuations, which belong to no record.
    """

    def __init__(self) -> None:
        self._calls: dict[TopicPartition, dict[int, int]] = {}
        self.count = 0

    def begin(self, topic: str | None, partition: int, offset: int) -> None:
        """Add a deferred call of a record; ``topic`` is None in a punctuation."""
        self.count += 1
        if topic is None:
            return
        calls = self._calls.setdefault(TopicPartition(topic, partition), {})
        calls[offset] = calls.get(offset, 0) + 1

    def end(self, topic: str | None, partition: int, offset: int) -> None:
        """Remove a deferred call of a record."""
        self.count -= 1
        if topic is None:
            return
        calls = self._calls[TopicPartition(topic, partition)]
        if calls[offset] == 1:
            del calls[offset]
        else:
            calls[offset] -= 1

    def unfinished(self, partition: TopicPartition) -> list[int]:
        """Return the offsets of a partition's unfinished records, in order."""
        return sorted(self._calls.get(partition, ()))
