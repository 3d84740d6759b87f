"""Buckets for plain Kafka clients: a producer that places records, consumers that share buckets.

The client (librdkafka) has no API for a partitioner or an assignor in Python, so both are wrappers.
Each consumer has its bucket in its ``client.id``; after every rebalance each member asks the broker
for the members and assigns itself its part of `Buckets.assign_members`. The protocol is the eager
one: every member revokes its partitions before any gets new ones, so all see the same members and
no partition has two readers. A member that cannot determine its part has no partitions, and retries
with each poll.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Message, Producer
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from thulawa.brokers.kafka.client_errors import translated
from thulawa.brokers.kafka.connection import Connection
from thulawa.brokers.kafka.reading import headers_of, newest
from thulawa.brokers.kafka.topics import Topics
from thulawa.errors import BrokerUnreachable, ConfigurationError, UnknownTopic
from thulawa.priority.buckets import Buckets
from thulawa.priority.placement import Newest, Placing, check_newest

_PREFIX = "thulawa-bucket"
_TIMEOUT = 10.0
_RETRY = 1.0
_REFRESH_MS = 10_000  # metadata refresh; the client's default is five minutes


def check_layout(connection: Connection, topic: str, buckets: Buckets) -> None:
    """Raise if another layout placed the newest records of a topic; a missing one is accepted."""
    if Topics(connection).partitions(topic):
        buckets.layout(check_newest(buckets, newest(connection, topic)))


def _partitions(topics: Topics, topic: str) -> int:
    count = topics.partitions(topic).get(topic)
    if count is None:
        raise UnknownTopic("there is no such topic", topic=topic)
    return count


class BucketProducer:
    """A wrapper of confluent-kafka's producer that places records in their buckets and stamps them.

    ``producer`` has any settings; all methods but `produce` are its own, and records with a
    partition are passed on unchanged. A topic is checked before its first record and again after
    ``refresh`` seconds: records of another layout raise then too, and the layout follows when the
    topic has gained partitions. ``dropped`` counts the dropped records of unknown buckets.

    .. versionadded:: 0.1.0
    """

    def __init__(
        self,
        producer: Producer,
        buckets: Buckets,
        connection: Connection | str,
        *,
        refresh: float = 60.0,
    ) -> None:
        self._producer = producer
        self._buckets = buckets
        self._connection = Connection.of(connection)
        self._topics = Topics(self._connection)
        self._refresh = refresh
        self._placing = Placing(buckets, self._newest)
        self._due: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    @property
    def dropped(self) -> int:
        """The number of records of unknown buckets that were dropped."""
        return self._placing.dropped

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        **more: Any,
    ) -> bool:
        """Send a record to its bucket's partition; return False if it was dropped."""
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        if partition < 0:
            now = time.monotonic()
            if now >= self._due.get(topic, 0):
                self._placing.expect(topic)
                self._due[topic] = now + self._refresh
            placed = self._placing(topic, key, pairs)
            if placed is None:
                return False
            partition, pairs = placed
        self._producer.produce(topic, value, key, partition, headers=pairs, **more)
        return True

    def _newest(self, topic: str) -> Newest:
        count = self._count(topic)
        found = newest(self._connection, topic)
        return {partition: found[partition] for partition in range(count)}

    def _count(self, topic: str) -> int:
        """Return the number of partitions, once the producer's metadata has all of them."""
        count = _partitions(self._topics, topic)
        deadline = time.monotonic() + _TIMEOUT
        while self._known_partitions(topic) < count:
            if time.monotonic() > deadline:
                raise BrokerUnreachable("the producer does not hear of its partitions", topic=topic)
            time.sleep(0.05)
        return count

    def _known_partitions(self, topic: str) -> int:
        try:
            found = self._producer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
        except KafkaException as error:
            raise translated(error, "looking for a topic", topic=topic) from error
        return 0 if found.error is not None else len(found.partitions)


class BucketConsumer:
    """A wrapper of confluent-kafka's consumer that reads its bucket's part of a topic in a group.

    The partitions of a bucket are assigned to its members, those of a bucket without members to the
    others; members join and leave as in any group. Members beyond the number of partitions are
    idle. ``settings`` are the client's. Other methods are those of `Consumer`. All members of the
    group must be created this way, with the same buckets. A record of another layout raises each
    time it is polled: it is never skipped or committed. ``on_revoke`` is called before partitions
    are revoked.

    .. versionadded:: 0.1.0
    """

    def __init__(
        self,
        connection: Connection | str,
        topic: str,
        *,
        group: str,
        buckets: Buckets,
        bucket: str,
        settings: Mapping[str, Any] | None = None,
        on_revoke: Callable[[Consumer, list[ClientPartition]], None] | None = None,
    ) -> None:
        if bucket not in buckets.urgency:
            raise ConfigurationError(f"there is no bucket {bucket!r}; there are {buckets.names}")
        ours = {"group.id", "client.id", "partition.assignment.strategy", "group.protocol"}
        if taken := sorted(ours & set(settings or {})):
            raise ConfigurationError(f"{', '.join(taken)}: BucketConsumer sets this itself")
        connection = Connection.of(connection)
        self._topic = topic
        self._group = group
        self._buckets = buckets
        self._admin = AdminClient(connection.client())
        self._topics = Topics(connection)
        self._settled = True
        self._tried = 0.0
        # offsets are stored when records are returned, after they were checked
        self._stores = (settings or {}).get("enable.auto.offset.store", True) in (True, "true")
        self._consumer = Consumer(
            {
                **connection.client(),
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": _REFRESH_MS,
                **(settings or {}),
                "enable.auto.offset.store": False,
                "group.id": group,
                "client.id": f"{_PREFIX}/{buckets.fingerprint}/{quote(bucket, safe='')}",
                "partition.assignment.strategy": "range",
                "group.protocol": "classic",
            }
        )
        more = {} if on_revoke is None else {"on_revoke": on_revoke}
        self._consumer.subscribe([topic], on_assign=self._assigned, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next record or error of the client; None if there is none."""
        self._settle()
        message = self._consumer.poll(timeout)
        return None if message is None else self._accepted([message])[0]

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return the next records."""
        self._settle()
        return self._accepted(self._consumer.consume(num_messages, timeout))

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _accepted(self, messages: list[Message]) -> list[Message]:
        """Return the records before the first of another layout; raise if it is the first."""
        for place, message in enumerate(messages):
            try:
                if message.error() is None:
                    self._buckets.check_headers([headers_of(message)])
            except ConfigurationError:
                self._seek_back(messages[place:])
                if not place:
                    raise
                return messages[:place]
            if self._stores and message.error() is None:
                self._store(message)
        return messages

    def _seek_back(self, messages: list[Message]) -> None:
        first: dict[int, int] = {}
        for one in messages:
            partition, offset = one.partition(), one.offset()
            if one.error() is None and partition is not None and offset is not None:
                first.setdefault(partition, offset)
        for partition, offset in first.items():
            self._consumer.seek(ClientPartition(self._topic, partition, offset))

    def _store(self, message: Message) -> None:
        try:
            self._consumer.store_offsets(message)
        except KafkaException as error:
            if error.args[0].code() != Code._STATE:  # noqa: SLF001 the partition was revoked
                raise

    def _settle(self) -> None:
        """Retry the assignment of this member, at most every second."""
        if not self._settled and time.monotonic() >= self._tried + _RETRY:
            self._assign_part(self._consumer, timeout=0)

    def _assigned(self, consumer: Consumer, _: list[ClientPartition]) -> None:
        consumer.assign([])  # else an error leaves the built-in assignment
        self._assign_part(consumer, timeout=_TIMEOUT)

    def _assign_part(self, consumer: Consumer, timeout: float) -> None:
        self._settled, self._tried = False, time.monotonic()
        members = self._members(timeout)
        own = str(consumer.memberid())
        if own not in members:  # the group is rebalancing
            return
        count = _partitions(self._topics, self._topic)
        places = self._buckets.assign_members(count, members)[own]
        consumer.assign([ClientPartition(self._topic, place) for place in places])
        self._settled = True

    def _members(self, timeout: float) -> dict[str, str]:
        """Return the bucket of each member once the group is stable; none if it is not."""
        deadline = time.monotonic() + timeout
        while True:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=_TIMEOUT)
            try:
                group = asked[self._group].result(_TIMEOUT + 1)
            except KafkaException as error:
                raise translated(error, f"asking for the members of {self._group}") from error
            if group.state == ConsumerGroupState.STABLE:
                return {one.member_id: self._bucket_of(one.client_id) for one in group.members}
            if group.state == ConsumerGroupState.PREPARING_REBALANCING or (
                time.monotonic() > deadline
            ):
                return {}
            time.sleep(0.05)

    def _bucket_of(self, client: str) -> str:
        prefix, _, rest = client.partition("/")
        fingerprint, _, bucket = rest.partition("/")
        if prefix != _PREFIX:
            raise ConfigurationError(
                f"group {self._group} has a member {client!r} that knows nothing of buckets; all "
                "its consumers must be BucketConsumers"
            )
        if fingerprint != self._buckets.fingerprint:
            raise ConfigurationError(
                f"group {self._group} has a member of another layout: its fingerprint is "
                f"{fingerprint}, here it is {self._buckets.fingerprint}; members share out "
                "partitions between them, so all must have the same shares"
            )
        return unquote(bucket)
