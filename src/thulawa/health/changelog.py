"""The one topic: changes are written to it, and everything is read back from it.

The changes of a partition are written atomically, together with the offset up to which it was read
for them, and only if nobody has written changes up to the same offset or a later one. So of several
instances that count one partition at the same time, the one that is ahead succeeds; the others
discard their totals and restore them from the topic. No count is overwritten by an older one or
left out: totals are a function of the offset alone (see `thulawa.health.counter.Totals`), and the
changes of a writer begin at an offset that it has read or written.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from thulawa.brokers.port import Broker, WriterId
from thulawa.core.markers import LastBatch
from thulawa.core.types import ProducerRecord, TopicPartition
from thulawa.errors import Fenced, OlderBatch, UnknownTopic
from thulawa.health.counter import Totals
from thulawa.health.counts import Count, decode, encode_key, encode_value

_QUERY = "counts"
# short: the open transaction of a killed instance delays all readers of the output for so long
_TRANSACTION_TIMEOUT, _READ_TIMEOUT = 15.0, 60.0
_ATTEMPTS, _AT_ONCE = 10, 8
_IDENTITY = "topic.id"  # the header with the id of the topic that was counted


class StoredCount(NamedTuple):
    """A record of the topic; records of one batch have one timestamp.

    ``identity`` is the id of the topic that was counted, where the broker has ids.
    """

    key: bytes
    value: bytes | None
    timestamp: int
    identity: bytes | None = None


class CountsChangelog:
    """The compacted topic of the counts, on any broker.

    The marker of a counted partition is the last offset that was read for it, in the same
    transaction as its changes; on Kafka it is the offset of a consumer group on the very partition
    that is counted, so that Kafka's own tools show the lag.
    """

    def __init__(self, broker: Broker, output: str, application: str) -> None:
        self._broker = broker
        self._output = output
        # a separator that no name contains: two jobs must not share an identity
        self.job = f"{application}/{output}"
        self._output_partitions = 1
        self._ids: dict[str, bytes] = {}

    def prepare(self, inputs: Iterable[str]) -> None:
        """Create the output, compacted, unless it exists; raise if an input does not."""
        for topic in inputs:
            self.partitions(topic)
        self._output_partitions = self._broker.partitions(self._output).get(self._output, 1)
        self._broker.create_topic(self._output, self._output_partitions, compact=True)

    def claim(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Abort the open transactions of earlier owners of partitions.

        Return the offset up to which each was read for the last changes that were written.
        Messages before it are in the totals, or were not to be counted.
        """
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            numbers[topic].append(number)
        ends: dict[TopicPartition, int] = {}
        for topic, claimed in numbers.items():
            writer = self._writer(topic)
            self._broker.fence(writer, claimed)
            markers = self._broker.markers(writer, claimed)
            for number in claimed:
                end = markers[number].number + 1 if number in markers else 0
                ends[TopicPartition(topic, number)] = end
        return ends

    def read(self, since: dict[int, int] | None = None) -> Iterator[StoredCount]:
        """Yield the records up to the end as it is now, those of a partition in their order.

        ``since`` holds the offsets to begin at, and those of the end when all is read.
        """
        ends = self._broker.end_offsets(self._output, committed=False)[self._output]
        starts = self._broker.start_offsets(self._output)[self._output] | dict(since or {})
        ranges = {TopicPartition(self._output, at): (starts[at], end) for at, end in ends.items()}
        for record in self._broker.read(ranges, timeout=_READ_TIMEOUT):
            identity = dict(record.headers).get(_IDENTITY)
            yield StoredCount(record.key or b"", record.value, record.timestamp, identity)
        if since is not None:
            since.update(ends)

    def write(
        self,
        changes: Mapping[TopicPartition, Sequence[Count]],
        now: int,
        ends: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Write changes, each partition's in a transaction; return those that were written.

        ``ends`` are the offsets up to which partitions were read for them, perhaps without any
        change. For the others another instance has written as far already. Several at once: a
        transaction is mostly waiting for answers.
        """
        with ThreadPoolExecutor(_AT_ONCE, "counts") as pool:
            done = pool.map(lambda at: self._write(at, changes[at], now, ends[at]), changes)
            return {partition for partition, one in zip(changes, done, strict=True) if one}

    def _write(self, source: TopicPartition, changes: Sequence[Count], now: int, end: int) -> bool:
        identity = self._ids.get(source.topic)
        headers = () if identity is None else ((_IDENTITY, identity),)
        to = source.partition % self._output_partitions
        records = [
            ProducerRecord(encode_key(one.cell), encode_value(one), headers, now, to)
            for one in changes
        ]
        for _ in range(_ATTEMPTS):
            with suppress(Fenced):  # by another instance: compare with its marker
                return self._commit(source, records, end)
        return self._commit(source, records, end)

    def _commit(self, source: TopicPartition, records: list[ProducerRecord], end: int) -> bool:
        writer, batch = self._writer(source.topic), LastBatch(end - 1)
        try:
            with self._broker.transaction(writer, source.partition, batch) as transaction:
                transaction.write(self._output, records)
        except OlderBatch:  # another instance has counted further
            return False
        return not transaction.skipped

    def identity(self, topic: str) -> bytes | None:
        """Return the id of an input, which a topic that is created again does not have.

        Changes that are written from now on name it. None: the broker has no ids.
        """
        found = self._broker.topic_ids(topic).get(topic)
        if found is None:
            self._ids.pop(topic, None)
            return None
        self._ids[topic] = found.encode()
        return self._ids[topic]

    def partitions(self, topic: str) -> int:
        """Return how many partitions an input has; raise if it does not exist."""
        found = self._broker.partitions(topic)
        if topic not in found:
            raise UnknownTopic("there is no such topic to count", topic=topic)
        return found[topic]

    def _writer(self, topic: str) -> WriterId:
        identity = self._ids.get(topic) or self.identity(topic) or b""
        return WriterId(
            application=f"{self.job}/{topic}",
            name=_QUERY,
            query=_QUERY,
            marker_topic=topic,
            # with the topic's id: one that is created again is counted from its first message
            log_key=f"{self.job}/{topic}/{identity.decode()}",
            timeout=_TRANSACTION_TIMEOUT,
        )


@dataclass(slots=True)
class Restored:
    """The totals of a partition as they are in the topic, and those of the last batch."""

    totals: Totals
    last: list[Count] = field(default_factory=list)
    written: int = -1
    identity: bytes | None = None  # of the topic that was counted, as far as it is known


def restore(
    changelog: CountsChangelog, partitions: Iterable[TopicPartition], expire: int
) -> dict[TopicPartition, Restored]:
    """Read the topic to its end; skip the records of other partitions."""
    restored = {partition: Restored(Totals(partition, expire)) for partition in partitions}
    for key, value, timestamp, identity in changelog.read() if restored else ():
        count = decode(key, value)
        topic, number, _, _ = count.cell
        assert number is not None  # merged counts are not in the topic
        one = restored.get(TopicPartition(topic, number))
        if one is None:
            continue
        one.totals.restore(count)
        one.identity = identity or one.identity
        if timestamp != one.written:
            one.last, one.written = [], timestamp
        if count.value is not None:
            one.last.append(count)
    return restored
