"""Counts in Kafka: changes and how far they count in one transaction.

The transaction's marker is the offset of a consumer group on the very partition that is counted
(`brokers.kafka.transactions`): so Kafka's own tools show the lag, and there is no topic beside the
output. The writer of a partition has a transactional id of its own: who takes a partition over
fences the one before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from thulawa.brokers.errors import Fenced, UnknownTopic
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.membership import Membership
from thulawa.brokers.kafka.reading import read_to_end
from thulawa.brokers.kafka.routing import OutRecord
from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.brokers.kafka.transactions import Batch, SinkSpec, claim, write
from thulawa.core.markers import OlderBatch
from thulawa.core.types import TopicPartition
from thulawa.health.changelog import IDENTITY, Stored
from thulawa.health.model import Count, encode_key, encode_value

__all__ = ["GroupMembership", "KafkaChangelog"]

_QUERY = "counts"
# short: what a killed instance leaves open keeps all readers of the output waiting for so long
_TRANSACTION, _PATIENCE = 15.0, 60.0
_ATTEMPTS, _AT_ONCE = 10, 8


class KafkaChangelog:
    """A compacted topic of Kafka."""

    def __init__(self, connection: Connection, output: str, application: str) -> None:
        self._connection = connection
        self._topics = Topics(connection)
        self._output = output
        self._application = application
        self._places = 1
        self._identities: dict[str, bytes | None] = {}

    def prepare(self, inputs: Iterable[str]) -> None:
        """See that the inputs are there; make the output unless it is there."""
        for topic in inputs:
            self.partitions(topic)
        self._places = self._topics.partitions(self._output)[self._output] or 1
        self._topics.ensure(self._output, TopicSpec(partitions=self._places, cleanup="compact"))

    def claim(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Fence the partitions' earlier writers, and end what they left; give how far they read."""

        def take(place: TopicPartition) -> tuple[TopicPartition, int]:
            last = claim(self._sink(place.topic), place.partition, _QUERY)
            return place, 0 if last is None else last + 1

        with ThreadPoolExecutor(_AT_ONCE, "counts") as pool:
            return dict(pool.map(take, places))

    def read(self, since: dict[int, int] | None = None) -> Iterator[list[Stored]]:
        """Give the records up to the end as it is now."""
        for chunk in read_to_end(self._connection, self._output, patience=_PATIENCE, since=since):
            yield [
                Stored(
                    _bytes(one.key()) or b"",
                    _bytes(one.value()),
                    one.timestamp()[1],
                    _bytes(dict(one.headers() or ()).get(IDENTITY)),
                )
                for one in chunk
            ]

    def write(
        self,
        changes: Mapping[TopicPartition, Sequence[Count]],
        now: int,
        ends: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Write changes, several partitions at once; give those that got through.

        A transaction is mostly waiting for answers.
        """
        with ThreadPoolExecutor(_AT_ONCE, "counts") as pool:
            through = pool.map(lambda at: self._write(at, changes[at], now, ends[at]), changes)
            return {place for place, one in zip(changes, through, strict=True) if one}

    def _write(self, place: TopicPartition, changes: Sequence[Count], now: int, end: int) -> bool:
        to = place.partition % self._places
        identity = self._identities.get(place.topic)
        headers = None if identity is None else ((IDENTITY, identity),)
        records = [
            OutRecord(self._output, encode_key(one.cell), encode_value(one), to, now, headers)
            for one in changes
        ]
        batch = Batch(_QUERY, end - 1, place.partition)
        for _ in range(_ATTEMPTS):
            with suppress(Fenced):  # by another instance: ask again how far it has come
                return self._written(place, batch, records)
        return self._written(place, batch, records)

    def _written(self, place: TopicPartition, batch: Batch, records: Sequence[OutRecord]) -> bool:
        try:
            return not write(self._sink(place.topic), batch, [records]).skipped
        except OlderBatch:  # another instance has counted further
            return False

    def identity(self, topic: str) -> bytes | None:
        """Return the id of an input, which differs when it is made anew; None: it has none."""
        self._identities[topic] = self._topics.identity(topic)
        return self._identities[topic]

    def partitions(self, topic: str) -> int:
        """Give how many partitions an input has."""
        count = self._topics.partitions(topic)[topic]
        if count is None:
            raise UnknownTopic("there is no such topic to count", topic=topic)
        return count

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the offset behind what is committed."""
        return self._topics.end_offsets(topic)[topic]

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Give, for each partition of an input, the first offset that is still there."""
        return self._topics.start_offsets(topic)[topic]

    def _sink(self, topic: str) -> SinkSpec:
        return SinkSpec(
            connection=self._connection,
            # a sign that no name holds: two jobs must not come to one id
            application=f"{self._application}/{self._output}/{topic}",
            name=_QUERY,
            markers=topic,
            transaction_timeout=_TRANSACTION,
            delivery_timeout=_TRANSACTION,
        )


class GroupMembership:
    """Partitions divided by a consumer group."""

    def __init__(self, connection: Connection, group: str, topics: Sequence[str]) -> None:
        self._membership = Membership(connection, group, topics)

    @property
    def joined(self) -> bool:
        """The group takes a moment to give a new member its share."""
        return self._membership.joined

    def owned(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Give those that the group has given to this instance."""
        return {TopicPartition(*one) for one in self._membership.assigned()} & set(places)

    def close(self) -> None:
        """Leave the group."""
        self._membership.close()


def _bytes(data: str | bytes | None) -> bytes | None:
    assert not isinstance(data, str)
    return data
