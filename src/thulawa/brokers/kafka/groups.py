"""Consumer groups: commit and read offsets, compute lag, and join a group for its assignment.

A query continues from the offsets of its checkpoint. Offsets are committed to a group as well for
Kafka's own tools, and so that an application whose checkpoint is lost knows that there was one.
"""

from collections.abc import Sequence
from functools import partial

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from thulawa.brokers.kafka.client_errors import retry_transient, translate_errors
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics
from thulawa.core.types import Offsets, TopicPartition

_TIMEOUT = 10.0


def commit_offsets(
    connection: Connection,
    group: str,
    offsets: Offsets,
    *,
    client: AdminClient | None = None,
    metadata: str = "",
) -> None:
    """Commit the next offset of each partition for a group, with ``metadata`` for each.

    Pass a ``client`` to commit often: a new one has to connect first.
    """
    partitions = [
        ClientPartition(topic, number, offset, metadata=metadata)
        for topic, positions in offsets.items()
        for number, offset in positions.items()
    ]
    if not partitions:
        return
    admin = client or AdminClient(connection.client())

    def commit() -> None:
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=_TIMEOUT
        )
        for one in asked[group].result(_TIMEOUT + 1).topic_partitions or []:
            if one.error is not None:
                raise KafkaException(one.error)

    with translate_errors(f"committing the offsets of group {group}"):
        retry_transient(commit, _TIMEOUT)


def committed_offsets(connection: Connection, group: str) -> Offsets:
    """Return the offsets that a group has committed; none for a group that does not exist."""
    found: Offsets = {}
    for one in committed(connection, group):
        found.setdefault(one.topic, {})[one.partition] = one.offset
    return found


def committed(connection: Connection, group: str) -> list[ClientPartition]:
    """Return what a group has committed, with metadata.

    A consumer asks, for the partitions of all topics: an admin client that asks a broker which has
    just become coordinator ends the process (librdkafka 2.16, confluent-kafka-javascript #374).
    """
    settings = {**connection.client(), "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)

    def fetch() -> list[ClientPartition]:
        topics = consumer.list_topics(timeout=_TIMEOUT).topics.values()
        asked = [
            ClientPartition(topic.topic, partition)
            for topic in topics
            if not topic.topic.startswith("__")
            for partition in topic.partitions
        ]
        found = consumer.committed(asked, timeout=_TIMEOUT) if asked else []
        for one in found:
            if one.error is not None and one.error.retriable():
                raise KafkaException(one.error)
        return found

    try:
        with translate_errors(f"reading the offsets of group {group}"):
            found = retry_transient(fetch, _TIMEOUT)
    finally:
        consumer.close()
    return [one for one in found if one.error is None and one.offset >= 0]


def delete_groups(connection: Connection, *groups: str) -> None:
    """Delete groups with what they have committed; those that do not exist are no error."""
    client = AdminClient(connection.client())

    def delete(group: str) -> None:
        try:
            asked = client.delete_consumer_groups([group], request_timeout=_TIMEOUT)
            asked[group].result(_TIMEOUT + 1)
        except KafkaException as error:
            if error.args[0].code() != Code.GROUP_ID_NOT_FOUND:
                raise

    for group in groups:
        with translate_errors(f"deleting the group {group}"):
            retry_transient(partial(delete, group), _TIMEOUT)


def lag(connection: Connection, group: str) -> Offsets:
    """Return how many records each partition holds that a group has not committed."""
    committed = committed_offsets(connection, group)
    ends = Topics(connection).end_offsets(*committed)
    return {
        topic: {
            partition: max(0, end - committed[topic].get(partition, 0))
            for partition, end in partitions.items()
        }
        for topic, partitions in ends.items()
    }


class Membership:
    """A member of a group that shares the partitions of topics; it reads and commits nothing.

    The group removes a member that dies after ``session`` seconds. ``joined`` is whether this one
    has had its first assignment, which may be empty. Belongs to one thread.
    """

    def __init__(
        self, connection: Connection, group: str, topics: Sequence[str], *, session: float = 10.0
    ) -> None:
        self._group = group
        self._consumer = Consumer(
            {
                **connection.client(),
                "group.id": group,
                "session.timeout.ms": int(session * 1000),
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                # records that come before a partition is paused are discarded
                "queued.max.messages.kbytes": 64,
            }
        )
        self.joined = False
        self._consumer.subscribe(list(topics), on_assign=self._join)

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions that are assigned now; call it at least every few minutes."""
        with translate_errors(f"sharing partitions in group {self._group}"):
            self._consumer.poll(0)
            partitions = self._consumer.assignment()
            self._consumer.pause(partitions)
        return {TopicPartition(one.topic, one.partition) for one in partitions}

    def _join(self, *_: object) -> None:
        self.joined = True

    def close(self) -> None:
        """Leave the group, which assigns its partitions to others at once."""
        self._consumer.close()
