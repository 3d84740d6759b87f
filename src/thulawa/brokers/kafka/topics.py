"""Topics of Kafka: create, describe and delete them, and read their start and end offsets.

Every call returns, or raises an error of `thulawa.errors`, within a time limit: an address where
nobody listens, or a wrong password, does not hang.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from thulawa.brokers.kafka.client_errors import retry_transient, translated
from thulawa.brokers.kafka.connection import Connection
from thulawa.core.types import Offsets
from thulawa.errors import (
    AuthenticationFailed,
    BrokerError,
    BrokerUnreachable,
    ConfigurationError,
    TopicDiffers,
    UnknownTopic,
)

Cleanup: TypeAlias = Literal["delete", "compact", "compact,delete"]

_TIMEOUT = 10.0
_NO_ID = str(Uuid(0, 0))
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """The settings of a topic to be created. ``copies`` -1: the brokers' default."""

    partitions: int = 1
    cleanup: Cleanup = "delete"
    copies: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ConfigurationError(f"a topic has at least one partition, not {self.partitions}")
        if self.cleanup not in get_args(Cleanup):
            raise ConfigurationError(f"cleanup is one of {', '.join(get_args(Cleanup))}")

    def named(self, topic: str) -> NewTopic:
        """Return the topic as the client creates it."""
        return NewTopic(
            topic,
            num_partitions=self.partitions,
            replication_factor=self.copies,
            config={"cleanup.policy": self.cleanup, **self.settings},
        )


def reachable(connection: Connection, *, timeout: float = _TIMEOUT, brokers: int = 1) -> None:
    """Raise unless this many brokers answer and accept the credentials."""
    reasons: list[Code] = []
    client = _admin_client(connection, error_cb=reasons.append)
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        try:
            found = len(client.list_topics(timeout=min(timeout, 1.0)).brokers)
        except KafkaException as error:
            client.poll(0)  # calls back with the client's errors, which say why
            for reason in reasons:
                cause = translated(reason, f"connecting to {connection.bootstrap}")
                if isinstance(cause, AuthenticationFailed):
                    raise cause from error
            if late:
                raise translated(error, f"nobody answered at {connection.bootstrap}") from error
        else:
            if found >= brokers:
                return
            if late:
                raise BrokerUnreachable(
                    f"{found} of {brokers} brokers answer at {connection.bootstrap}"
                )
            client.poll(0.1)  # one that is busy or has just started may know of none


def _admin_client(connection: Connection, **more: Any) -> AdminClient:
    """Create a client: the first that any use of Kafka creates, so bad settings raise here."""
    try:
        return AdminClient({**connection.client(), **more})
    except KafkaException as error:
        raise ConfigurationError(f"{error.args[0].str()}; see librdkafka's settings") from error


class Topics:
    """The topics of a Kafka cluster. Every call returns or raises within ``timeout`` seconds.

    With ``lazy`` the client is created, and rejects bad settings, with the first call.
    """

    def __init__(
        self, connection: Connection, *, timeout: float = _TIMEOUT, lazy: bool = False
    ) -> None:
        self.connection = connection
        self._timeout = timeout
        self._limit: dict[str, Any] = {"request_timeout": timeout}
        if not lazy:
            self._client = _admin_client(connection)

    @cached_property
    def _client(self) -> AdminClient:
        return _admin_client(self.connection)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        try:
            return sorted(self._client.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise self._translated(error, "") from error

    def partitions(self, *topics: str) -> dict[str, int]:
        """Return the number of partitions of those of the topics that exist."""
        return {topic: len(one.partitions) for topic, one in self._described(topics).items()}

    def topic_ids(self, *topics: str) -> dict[str, str]:
        """Return the ids of those of the topics that exist; brokers before 2.8 have none."""
        return _ids(self._described(topics))

    def ids_and_ends(self, *topics: str) -> tuple[dict[str, str], Offsets]:
        """Return `topic_ids` and `end_offsets` of topics with one request less."""
        found = self._described(topics)
        return _ids(found), self._offsets(topics, found, OffsetSpec.latest)

    def _described(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Describe those of the topics that exist."""
        if not (names := list(dict.fromkeys(topics))):  # the client accepts no name twice
            return {}
        asked = self._client.describe_topics(TopicCollection(names), **self._limit)
        found: dict[str, TopicDescription] = {}
        for topic, answer in asked.items():
            with suppress(UnknownTopic):
                found[topic] = self._result(answer, topic)
        return found

    def ensure(self, topic: str, spec: TopicSpec | None = None) -> bool:
        """Create a topic unless it exists; return whether this call created it.

        Raise `TopicDiffers` if it exists with another number of partitions or another clean-up:
        the records of a key would be in other partitions than expected.
        """
        spec = spec or TopicSpec()
        try:
            self._create(topic, spec)
        except _TopicExists:
            self._check_settings(topic, spec)
            return False
        self._await_usable(topic)
        return True

    def _create(self, topic: str, spec: TopicSpec) -> None:
        answers = self._client.create_topics([spec.named(topic)], **self._limit)
        self._result(answers[topic], topic)

    def ensure_partitions(self, topic: str, least: int) -> None:
        """Create a topic, or add partitions, until it has at least so many."""
        count = self.partitions(topic).get(topic)
        if count is not None and count >= least:
            return
        try:
            if count is None:
                self._create(topic, TopicSpec(partitions=least))
            else:
                more = [NewPartitions(topic, least)]
                self._result(self._client.create_partitions(more, **self._limit)[topic], topic)
        except (BrokerError, _TopicExists):
            # another task may have done the same at this moment, for fewer or for more
            count = self.partitions(topic).get(topic)
            if count is None:
                raise
            if count < least:
                self.ensure_partitions(topic, least)
        self._await_usable(topic)

    def _await_usable(self, topic: str) -> None:
        """Wait until all brokers know a topic that was just created."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self.end_offsets(topic)
            except BrokerError:  # not known here yet, or without a leader
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records; return when the brokers no longer list it.

        The controller acknowledges a deletion before the brokers have heard of it.
        """
        self._result(self._client.delete_topics([topic], **self._limit)[topic], topic)
        deadline = time.monotonic() + self._timeout
        while self.partitions(topic):
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    f"topic {topic!r} is still listed {self._timeout:g} s after its deletion"
                )
            time.sleep(0.05)

    def delete_records(self, before: Offsets) -> None:
        """Delete the records before an offset of each partition; their space is freed later."""
        partitions = [
            TopicPartition(topic, number, offset)
            for topic, offsets in before.items()
            for number, offset in offsets.items()
        ]
        answers = self._client.delete_records(partitions, **self._limit) if partitions else {}
        for one, answer in answers.items():
            self._result(answer, one.topic)

    def settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, by their names in Kafka."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = self._client.describe_configs([resource], **self._limit)
        found = self._result(answers[resource], topic)
        return {name: str(entry.value) for name, entry in found.items()}

    def largest_record(self, topic: str) -> int:
        """Return how many bytes a batch of one record may have in this topic."""
        return int(self.settings(topic)["max.message.bytes"])

    def start_offsets(self, *topics: str) -> Offsets:
        """Return the offset of the first record that each partition still has."""
        return self._offsets(topics, self._described(topics), OffsetSpec.earliest)

    def end_offsets(self, *topics: str, committed: bool = True) -> Offsets:
        """Return the offset after the last record; with ``committed``, before open transactions.

        A transaction that was committed a moment ago may count as open for a little longer.
        """
        found = self._described(topics)
        return self._offsets(topics, found, OffsetSpec.latest, committed=committed)

    def _offsets(
        self,
        topics: Iterable[str],
        found: Mapping[str, TopicDescription],
        spec: Callable[[], Any],
        *,
        committed: bool = True,
    ) -> Offsets:
        asked: dict[TopicPartition, Any] = {}
        for topic in topics:
            if topic not in found:
                raise UnknownTopic("there is no such topic", topic=topic)
            count = len(found[topic].partitions)
            asked |= {TopicPartition(topic, number): spec() for number in range(count)}
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def listed() -> Offsets:
            answers = self._client.list_offsets(asked, isolation_level=level, **self._limit)
            offsets: Offsets = {one.topic: {} for one in asked}
            for one, answer in answers.items():
                offsets[one.topic][one.partition] = answer.result(self._timeout + 1).offset
            return offsets

        try:
            return retry_transient(listed, self._timeout)
        except KafkaException as error:
            raise self._translated(error, ", ".join(found)) from error

    def _check_settings(self, topic: str, spec: TopicSpec) -> None:
        count = self.partitions(topic).get(topic)
        if count != spec.partitions:
            raise TopicDiffers(
                f"it has {count} partitions, {spec.partitions} were asked for", topic=topic
            )
        cleanup = self.settings(topic)["cleanup.policy"]
        if set(cleanup.split(",")) != set(spec.cleanup.split(",")):
            raise TopicDiffers(
                f"its cleanup.policy is {cleanup}, {spec.cleanup} was asked for", topic=topic
            )

    def _result(self, answer: "Future[_T]", topic: str) -> _T:
        try:
            return answer.result(self._timeout + 1)
        except TimeoutError as error:
            raise BrokerUnreachable(f"no answer from {self.connection.bootstrap}") from error
        except KafkaException as error:
            if error.args[0].code() == Code.TOPIC_ALREADY_EXISTS:
                raise _TopicExists from error
            raise self._translated(error, topic) from error

    def _translated(self, error: KafkaException, topic: str) -> BrokerError:
        result = translated(error, f"asking {self.connection.bootstrap}", topic=topic)
        if isinstance(result, BrokerUnreachable):
            # ask once more, in a way that says why: a wrong password looks like silence here
            reachable(self.connection, timeout=3)
        return result


def _ids(found: Mapping[str, TopicDescription]) -> dict[str, str]:
    ids = {name: str(one.topic_id) for name, one in found.items()}
    return {name: one for name, one in ids.items() if one != _NO_ID}


class _TopicExists(Exception):
    pass
