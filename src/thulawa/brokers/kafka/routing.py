"""Route the records of a sink to their topic, or by the policies where that is not possible.

A topic is looked up once a batch, before its first record, so that a deleted one is noticed. The
size of its largest record is requested once, and only where a policy needs it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from thulawa.brokers.kafka.topics import Topics, TopicSpec
from thulawa.core.types import Headers
from thulawa.errors import BrokerError, ConfigurationError, RecordTooLarge, UnknownTopic
from thulawa.priority.placement import Placing

Missing: TypeAlias = Literal["fail", "create", "dead_letter"]
Oversized: TypeAlias = Literal["fail", "dead_letter"]

_BATCH_OVERHEAD = 61 + 21  # of a batch of one record, at most
_HEADER_OVERHEAD = 10
_MAX_DEAD_BYTES = 64 * 1024


class OutRecord(NamedTuple):
    """A record on its way out; ``partition`` -1: Kafka's choice, by key."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    timestamp: int | None
    headers: Headers | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What is done with records whose topic is missing, or that are larger than it accepts.

    ``create`` creates the topic by ``spec``. A dead letter carries Kafka Streams' error headers;
    of an oversized value it has the first 64 KiB, with the size and the SHA-256 of the whole.
    """

    missing: Missing = "fail"
    oversized: Oversized = "fail"
    dead_letter: str | None = None
    spec: TopicSpec = field(default_factory=TopicSpec)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("missing", self.missing, get_args(Missing)),
            ("oversized", self.oversized, get_args(Oversized)),
        ):
            if value not in known:
                raise ConfigurationError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if "dead_letter" in (self.missing, self.oversized) and not self.dead_letter:
            raise ConfigurationError("dead letters need a topic: dead_letter=…")


class Router:
    """Applies the policies; with ``placing``, sets the partition and the stamp of records too.

    Buckets apply to all topics but that of the dead letters, and to records that do not name their
    partition. The number of partitions is requested once a batch, since it may grow.
    """

    def __init__(self, topics: Topics, policies: Policies, placing: Placing | None = None) -> None:
        self._topics = topics
        self._policies = policies
        self._placing = placing
        self._known: dict[str, int | None] = {}
        self._limits: dict[str, int] = {}
        self.dead_letters = 0

    @property
    def dropped(self) -> int:
        """The number of records of this batch that were dropped because their bucket is unknown."""
        return 0 if self._placing is None else self._placing.dropped

    def new_batch(self) -> None:
        """Look topics up again from here on."""
        self._known.clear()
        self.dead_letters = 0
        if self._placing is not None:
            self._placing.dropped = 0

    def look_up(self, wanted: Iterable[str]) -> None:
        """Look up topics that are not known yet, all with one request."""
        new = set(wanted) - self._known.keys()
        if not new:
            return
        if self._policies.dead_letter is not None:
            new.add(self._policies.dead_letter)
        self._known |= dict.fromkeys(new) | self._topics.partitions(*sorted(new))
        for topic in sorted(new):
            if self._known[topic] is None:
                self._miss(topic)
            limited = self._policies.oversized == "dead_letter" and topic not in self._limits
            if limited and self._known[topic] is not None:
                self._limits[topic] = self._topics.largest_record(topic)
            if self._placing is not None:
                self._placing.expect(topic, self._known[topic])

    @property
    def plain(self) -> bool:
        """Whether every record goes to its topic unchanged, whatever its size."""
        return self._placing is None and not self._limits and None not in self._known.values()

    def route_all(self, records: Iterable[OutRecord]) -> list[OutRecord]:
        """Return the records to be sent in place of these."""
        routed = (self.route(record) for record in records)
        if self._placing is None:
            return list(routed)
        placed = (self._placed(record, self._placing) for record in routed)
        return [record for record in placed if record is not None]

    def _placed(self, record: OutRecord, placing: Placing) -> OutRecord | None:
        if record.partition >= 0 or record.topic == self._policies.dead_letter:
            return record
        found = placing(record.topic, record.key, record.headers)
        if found is None:
            return None
        return record._replace(partition=found[0], headers=tuple(found[1]))

    def route(self, record: OutRecord) -> OutRecord:
        """Return the record to be sent in place of this one: itself, or a dead letter."""
        if self._known[record.topic] is None:
            return self._dead(record, UnknownTopic("there is no such topic", topic=record.topic))
        limit = self._limits.get(record.topic)
        if limit is not None and (size := _size(record)) > limit:
            why = RecordTooLarge(f"{size:,} bytes, {limit:,} are allowed", topic=record.topic)
            return self._dead(record, why)
        return record

    def _miss(self, topic: str) -> None:
        # a dead letter that cannot be sent is a lost record: its topic must exist or be created
        if self._policies.missing == "create":
            self._topics.ensure(topic, self._policies.spec)
            self._known[topic] = self._policies.spec.partitions
        elif self._policies.missing == "fail" or topic == self._policies.dead_letter:
            raise UnknownTopic("there is no such topic", topic=topic)

    def _dead(self, record: OutRecord, why: BrokerError) -> OutRecord:
        assert self._policies.dead_letter is not None
        self.dead_letters += 1
        facts = {
            "__streams.errors.exception": type(why).__name__,
            "__streams.errors.message": str(why.args[0]),
            "__streams.errors.topic": record.topic,
        }
        headers = [(name, text.encode()) for name, text in facts.items()]
        key, value = record.key, record.value
        own = record.headers or ()
        if isinstance(why, RecordTooLarge):
            whole = value or b""
            headers += [
                ("thulawa.errors.size", str(len(whole)).encode()),
                ("thulawa.errors.sha256", hashlib.sha256(whole).hexdigest().encode()),
            ]
            key, value = key and key[:_MAX_DEAD_BYTES], value and value[:_MAX_DEAD_BYTES]
            own = tuple((name, data and data[:_MAX_DEAD_BYTES]) for name, data in own[:8])
        return OutRecord(
            self._policies.dead_letter, key, value, -1, record.timestamp, (*own, *headers)
        )


def _size(record: OutRecord) -> int:
    headers = sum(
        len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD
        for name, value in record.headers or ()
    )
    return len(record.key or b"") + len(record.value or b"") + headers + _BATCH_OVERHEAD
