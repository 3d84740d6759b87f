"""Consumer groups: committed offsets and lag, so that ordinary Kafka tools show how far we are.

The offsets a query goes on from are in its checkpoint. What is written here is a copy for people
and their tools, and for an application whose checkpoint is lost: it tells that there was one.
"""

from functools import partial

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient

from thulawa.brokers.kafka.client_errors import retry_transient, translated
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.topics import Topics
from thulawa.core.types import Offsets

_TIMEOUT = 10.0


def commit_offsets(
    connection: Connection,
    group: str,
    offsets: Offsets,
    *,
    client: AdminClient | None = None,
    metadata: str = "",
) -> None:
    """Commit where a group is: the next offset of each partition, with ``metadata`` for each.

    Who commits often keeps a ``client``: a new one has to connect first.
    """
    places = [
        TopicPartition(topic, partition, offset, metadata=metadata)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    ]
    if not places:
        return
    admin = client or AdminClient(connection.client())

    def commit() -> None:
        asked = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=_TIMEOUT
        )
        for place in asked[group].result(_TIMEOUT + 1).topic_partitions or []:
            if place.error is not None:
                raise KafkaException(place.error)

    try:
        retry_transient(commit, _TIMEOUT)
    except KafkaException as error:
        raise translated(error, f"committing the offsets of group {group}") from error


def committed_offsets(connection: Connection, group: str) -> Offsets:
    """Return the offsets that a group has committed; none for a group that does not exist."""
    found: Offsets = {}
    for place in committed(connection, group):
        found.setdefault(place.topic, {})[place.partition] = place.offset
    return found


def committed(connection: Connection, group: str) -> list[TopicPartition]:
    """Return what a group has committed, with metadata.

    A consumer asks, for the partitions of all topics: an admin client that asks a coordinator
    which has just come into office ends the process (librdkafka 2.16, confluent-kafka-javascript
    issue 374).
    """
    settings = {**connection.client(), "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)

    def fetch() -> list[TopicPartition]:
        topics = consumer.list_topics(timeout=_TIMEOUT).topics.values()
        places = [
            TopicPartition(topic.topic, partition)
            for topic in topics
            if not topic.topic.startswith("__")
            for partition in topic.partitions
        ]
        found = consumer.committed(places, timeout=_TIMEOUT) if places else []
        for place in found:
            if place.error is not None and place.error.retriable():
                raise KafkaException(place.error)
        return found

    try:
        places = retry_transient(fetch, _TIMEOUT)
    except KafkaException as error:
        raise translated(error, f"reading the offsets of group {group}") from error
    finally:
        consumer.close()
    return [place for place in places if place.error is None and place.offset >= 0]


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
        try:
            retry_transient(partial(delete, group), _TIMEOUT)
        except KafkaException as error:
            raise translated(error, f"deleting the group {group}") from error


def lag(connection: Connection, group: str) -> Offsets:
    """Give how many records each partition holds that a group has not committed."""
    committed = committed_offsets(connection, group)
    if not committed:
        return {}
    ends = Topics(connection).end_offsets(*committed)
    return {
        topic: {
            partition: max(0, end - committed[topic].get(partition, 0))
            for partition, end in partitions.items()
        }
        for topic, partitions in ends.items()
    }
