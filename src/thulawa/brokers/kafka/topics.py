"""Topics: see that they are there, make them, read where they begin and end.

Whatever is asked for is answered, or refused with an error of `errors`, within a time limit: an
address where nobody listens, or a wrong password, does not hang.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
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
    """A topic as it is to be made. ``copies`` -1: as many as is the brokers' default."""

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
        """Give it a name, as the client wants it."""
        return NewTopic(
            topic,
            num_partitions=self.partitions,
            replication_factor=self.copies,
            config={"cleanup.policy": self.cleanup, **self.settings},
        )


def reachable(connection: Connection, *, timeout: float = _TIMEOUT, brokers: int = 1) -> None:
    """Raise unless this many brokers answer and let us in."""
    reasons: list[Code] = []
    client = _client(connection, error_cb=reasons.append)
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        try:
            found = len(client.list_topics(timeout=min(timeout, 1.0)).brokers)
        except KafkaException as error:
            client.poll(0)  # hands over the client's complaints, which say why
            _refuse_stranger(connection, reasons)
            if late:
                raise translated(error, f"nobody answered at {connection.bootstrap}") from error
        else:
            if found >= brokers:
                return
            if late:
                raise BrokerUnreachable(
                    f"{found} of {brokers} brokers answer at {connection.bootstrap}"
                )
            client.poll(0.1)  # one that is busy or has just begun may know of none


def _client(connection: Connection, **more: Any) -> AdminClient:
    """Make a client: the first that any use of Kafka makes, so bad settings are seen here."""
    try:
        return AdminClient({**connection.client(), **more})
    except KafkaException as error:
        raise ConfigurationError(f"{error.args[0].str()}; see librdkafka's settings") from error


def _refuse_stranger(connection: Connection, reasons: Iterable[Code]) -> None:
    for reason in reasons:
        told = translated(reason, f"connecting to {connection.bootstrap}")
        if isinstance(told, AuthenticationFailed):
            raise told


class Topics:
    """The topics of some brokers."""

    def __init__(self, connection: Connection, *, timeout: float = _TIMEOUT) -> None:
        self._connection = connection
        self._timeout = timeout
        self._limit: dict[str, Any] = {"request_timeout": timeout}
        self._client = _client(connection)

    def partitions(self, *topics: str) -> dict[str, int | None]:
        """Give how many partitions each topic has; None where there is no such topic."""
        found = self._described(topics)
        return {topic: None if one is None else len(one.partitions) for topic, one in found.items()}

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        try:
            return sorted(self._client.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise self._told(error, "") from error

    def ids_and_ends(self, *topics: str) -> tuple[dict[str, str], Offsets]:
        """Return the id of each topic, and its end offsets as `end_offsets` does.

        A topic that is deleted and created again has another id. Brokers before Kafka 2.8 give
        topics none: they are left out.
        """
        found = self._described(topics)
        counts = {name: None if one is None else len(one.partitions) for name, one in found.items()}
        return _ids(found), self._offsets_of(counts, OffsetSpec.latest)

    def ids(self, *topics: str) -> dict[str, str]:
        """Return the id of each topic that exists, as `ids_and_ends` does."""
        return _ids(self._described(topics))

    def _described(self, topics: Iterable[str]) -> dict[str, TopicDescription | None]:
        """Describe topics; None where there is no such topic."""
        if not (names := list(dict.fromkeys(topics))):  # the client refuses one named twice
            return {}
        asked = self._client.describe_topics(TopicCollection(names), **self._limit)
        found: dict[str, TopicDescription | None] = {}
        for topic, answer in asked.items():
            try:
                found[topic] = self._result(answer, topic)
            except UnknownTopic:
                found[topic] = None
        return found

    def ensure(self, topic: str, spec: TopicSpec | None = None) -> bool:
        """Make a topic unless it is there; True when this call made it.

        A topic that is there with another number of partitions or another clean-up is refused:
        records of a key would not be where they are looked for.
        """
        spec = spec or TopicSpec()
        try:
            self._done(self._client.create_topics([spec.named(topic)], **self._limit), topic)
        except _AlreadyThere:
            self._refuse_differences(topic, spec)
            return False
        self._await_usable(topic)
        return True

    def ensure_partitions(self, topic: str, least: int) -> None:
        """Make a topic, or give it more partitions, until it has at least so many."""
        there = self.partitions(topic)[topic]
        if there is not None and there >= least:
            return
        try:
            if there is None:
                made = TopicSpec(partitions=least).named(topic)
                self._done(self._client.create_topics([made], **self._limit), topic)
            else:
                more = NewPartitions(topic, least)
                self._done(self._client.create_partitions([more], **self._limit), topic)
        except (BrokerError, _AlreadyThere):
            # another task may have done the same at this moment, for fewer or for more
            there = self.partitions(topic)[topic]
            if there is None:
                raise
            if there < least:
                self.ensure_partitions(topic, least)
        self._await_usable(topic)

    def _await_usable(self, topic: str) -> None:
        """Wait until all brokers know a topic that was just made."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self.end_offsets(topic)
            except BrokerError:  # unknown here still, or its leader not yet in office
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def delete(self, topic: str) -> None:
        """Delete a topic and everything in it; return when the brokers no longer list it.

        The controller acknowledges a deletion before the brokers have heard of it.
        """
        self._done(self._client.delete_topics([topic], **self._limit), topic)
        deadline = time.monotonic() + self._timeout
        while self.partitions(topic)[topic] is not None:
            if time.monotonic() > deadline:
                raise BrokerUnreachable(
                    f"topic {topic!r} is still listed {self._timeout:g} s after its deletion"
                )
            time.sleep(0.05)

    def delete_records(self, offsets: Offsets) -> None:
        """Delete the records before an offset of each partition; their space is freed in time."""
        places = [
            TopicPartition(topic, number, offset)
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        ]
        answers = self._client.delete_records(places, **self._limit) if places else {}
        for place, answer in answers.items():
            self._result(answer, place.topic)

    def largest_record(self, topic: str) -> int:
        """Give how many bytes a batch of one record may have in this topic."""
        return int(self.settings(topic)["max.message.bytes"])

    def start_offsets(self, *topics: str) -> Offsets:
        """Give the offset of the first record of each partition."""
        return self._offsets(topics, OffsetSpec.earliest)

    def end_offsets(self, *topics: str, committed: bool = True) -> Offsets:
        """Give the offset after the last record; with ``committed``, before open transactions.

        A transaction that was committed a moment ago may count as open for a little longer.
        """
        return self._offsets(topics, OffsetSpec.latest, committed=committed)

    def _refuse_differences(self, topic: str, spec: TopicSpec) -> None:
        there = self.partitions(topic)[topic]
        if there != spec.partitions:
            raise TopicDiffers(
                f"it has {there} partitions, {spec.partitions} were asked for", topic=topic
            )
        cleanup = self.settings(topic)["cleanup.policy"]
        if set(cleanup.split(",")) != set(spec.cleanup.split(",")):
            raise TopicDiffers(
                f"its cleanup.policy is {cleanup}, {spec.cleanup} was asked for", topic=topic
            )

    def _offsets(
        self, topics: Iterable[str], spec: Callable[[], Any], *, committed: bool = True
    ) -> Offsets:
        return self._offsets_of(self.partitions(*topics), spec, committed=committed)

    def _offsets_of(
        self, counts: Mapping[str, int | None], spec: Callable[[], Any], *, committed: bool = True
    ) -> Offsets:
        asked: dict[TopicPartition, Any] = {}
        for topic, count in counts.items():
            if count is None:
                raise UnknownTopic("there is no such topic", topic=topic)
            asked |= {TopicPartition(topic, number): spec() for number in range(count)}
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        try:
            return retry_transient(lambda: self._listed(asked, level), self._timeout)
        except KafkaException as error:
            raise self._told(error, ", ".join(counts)) from error

    def _listed(self, asked: dict[TopicPartition, Any], level: IsolationLevel) -> Offsets:
        answers = self._client.list_offsets(asked, isolation_level=level, **self._limit)
        found: Offsets = {place.topic: {} for place in asked}
        for place, answer in answers.items():
            found[place.topic][place.partition] = answer.result(self._timeout + 1).offset
        return found

    def settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, by their names in Kafka."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = self._client.describe_configs([resource], **self._limit)
        found = self._result(answers[resource], topic)
        return {name: str(entry.value) for name, entry in found.items()}

    def _done(self, answers: Mapping[str, "Future[None]"], topic: str) -> None:
        self._result(answers[topic], topic)

    def _result(self, answer: "Future[_T]", topic: str) -> _T:
        try:
            return answer.result(self._timeout + 1)
        except TimeoutError as error:
            raise BrokerUnreachable(f"no answer from {self._connection.bootstrap}") from error
        except KafkaException as error:
            if error.args[0].code() == Code.TOPIC_ALREADY_EXISTS:
                raise _AlreadyThere from error
            raise self._told(error, topic) from error

    def _told(self, error: KafkaException, topic: str) -> BrokerError:
        told = translated(error, f"asking {self._connection.bootstrap}", topic=topic)
        if isinstance(told, BrokerUnreachable):
            # ask once more, in a way that says why: a wrong password looks like silence here
            reachable(self._connection, timeout=3)
        return told


def _ids(found: Mapping[str, TopicDescription | None]) -> dict[str, str]:
    ids = {name: str(one.topic_id) for name, one in found.items() if one is not None}
    return {name: one for name, one in ids.items() if one != _NO_ID}


class _AlreadyThere(Exception):
    """The topic was there already."""
